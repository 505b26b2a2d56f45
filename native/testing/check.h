// A test harness in one header: cases register themselves, CHECK reports and goes on, REQUIRE ends the case.
#pragma once

#include <atomic>
#include <functional>
#include <iostream>
#include <mutex>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace hvd {

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace hvd

namespace hvd::testing {

struct Case {
  const char* name;
  std::function<void()> body;
};

inline std::vector<Case>& cases() {
  static std::vector<Case> all;
  return all;
}

inline std::atomic<int>& failures() {
  static std::atomic<int> count{0};
  return count;
}

struct Register {
  Register(const char* name, std::function<void()> body) { cases().push_back({name, std::move(body)}); }
};

struct Fatal : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// From any thread: the ranks of a World are threads.
inline void report(const char* file, int line, const std::string& text) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  std::cerr << file << ":" << line << ": " << text << "\n";
  ++failures();
}

// Sanitizers make everything 5 to 20 times slower: tests take less of what only adds time.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

// Runs the cases whose names contain one of the words (all without words), and none of those with a minus in front.
// Returns how many failed.
int run_cases(const std::vector<std::string>& words);

}  // namespace hvd::testing

#define HVD_JOIN2(a, b) a##b
#define HVD_JOIN(a, b) HVD_JOIN2(a, b)
// Numbered by the file that is compiled, as that may be a bundle of tests.
#define HVD_TEST(name, number)                                                                          \
  static void HVD_JOIN(test_body_, number)();                                                           \
  static const hvd::testing::Register HVD_JOIN(test_case_, number)(name, HVD_JOIN(test_body_, number)); \
  static void HVD_JOIN(test_body_, number)()
#define TEST(name) HVD_TEST(name, __COUNTER__)

#define CHECK(condition)                                                                     \
  do {                                                                                       \
    if (!(condition)) hvd::testing::report(__FILE__, __LINE__, "CHECK failed: " #condition); \
  } while (false)

#define CHECK_EQ(a, b)                                                             \
  do {                                                                             \
    const auto left_ = (a);                                                        \
    const auto right_ = (b);                                                       \
    if (!(left_ == right_)) {                                                      \
      std::ostringstream text_;                                                    \
      text_ << "CHECK_EQ failed: " #a " is " << left_ << ", " #b " is " << right_; \
      hvd::testing::report(__FILE__, __LINE__, text_.str());                       \
    }                                                                              \
  } while (false)

#define REQUIRE(condition)                                                     \
  do {                                                                         \
    if (!(condition)) {                                                        \
      hvd::testing::report(__FILE__, __LINE__, "REQUIRE failed: " #condition); \
      throw hvd::testing::Fatal(#condition);                                   \
    }                                                                          \
  } while (false)
