#include <chrono>
#include <exception>
#include <iostream>
#include <mutex>

#include "testing/check.h"

namespace hvd::testing {

int run_cases(const std::string& filter) {
  int ran = 0;
  int failed = 0;
  for (const Case& test : cases()) {
    if (std::string(test.name).find(filter) == std::string::npos) continue;
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

int main(int argc, char** argv) { return hvd::testing::run_cases(argc > 1 ? argv[1] : "") == 0 ? 0 : 1; }
