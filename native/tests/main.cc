#include <chrono>
#include <exception>
#include <iostream>
#include <mutex>

#include "testing/check.h"

namespace hvd::testing {

namespace {

// Whether the case is wanted: it contains one of the words, and none of those that are given with a minus.
bool is_wanted(const std::string& name, const std::vector<std::string>& words) {
  bool any_positive = false;
  bool matched = false;
  for (const std::string& word : words) {
    const bool negative = word.starts_with("-");
    const bool found = name.find(word.substr(negative ? 1 : 0)) != std::string::npos;
    if (negative && found) return false;
    any_positive = any_positive || !negative;
    matched = matched || (!negative && found);
  }
  return matched || !any_positive;
}

}  // namespace

int run_cases(const std::vector<std::string>& words) {
  int ran = 0;
  int failed = 0;
  for (const Case& test : cases()) {
    if (!is_wanted(test.name, words)) continue;
    const int before = failures();
    const auto start = std::chrono::steady_clock::now();
    try {
      test.body();
    } catch (const Fatal&) {
      // already reported
    } catch (const std::exception& error) {
      report(test.name, 0, std::string("unexpected exception: ") + error.what());
    }
    const auto taken = std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - start);
    const bool ok = failures() == before;
    ++ran;
    failed += ok ? 0 : 1;
    std::cout << (ok ? "ok   " : "FAIL ") << test.name << " (" << taken.count() << " ms)" << std::endl;
  }
  std::cout << ran - failed << " passed, " << failed << " failed" << std::endl;
  return ran == 0 ? 1 : failed;
}

}  // namespace hvd::testing

// Arguments: words that the names of the cases to run contain; -word leaves cases out.
int main(int argc, char** argv) { return hvd::testing::run_cases({argv + 1, argv + argc}) == 0 ? 0 : 1; }
