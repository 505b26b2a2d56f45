#include <fstream>
#include <set>
#include <sstream>
#include <string>

#include "reduce/processor.h"
#include "testing/check.h"

namespace hvd {
namespace {

// What the system says of the first processor; empty where it uses another word than "flags".
std::set<std::string> listed_flags() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("flags")) continue;
    std::istringstream words(line.substr(line.find(':') + 1));
    std::set<std::string> flags;
    for (std::string word; words >> word;) flags.insert(word);
    return flags;
  }
  return {};
}

TEST("processor: has every instruction set that the system lists, and no other") {
#if defined(__x86_64__)
  const std::set<std::string> flags = listed_flags();
  const auto lists = [&](std::initializer_list<const char*> words) {
    for (const char* word : words) {
      if (!flags.contains(word)) return false;
    }
    return true;
  };
  const bool avx2 = lists({"avx2", "fma", "f16c"});
  CHECK_EQ(processor_has("avx2"), avx2);
  CHECK_EQ(processor_has("avx512"), avx2 && lists({"avx512f", "avx512bw", "avx512vl", "avx512dq"}));
#else
  CHECK(listed_flags().empty() || !processor_has("avx2"));
#endif
  CHECK(processor_has("base"));
  CHECK(!processor_has("sse9"));
}

}  // namespace
}  // namespace hvd
