// A test harness in one header: cases register themselves, CHECK reports and goes on, REQUIRE ends the case.
#pragma once

#include <functional>
#include <iostream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace hvd::testing {

struct Case {
  const char* name;
  std::function<void()> body;
};

inline std::vector<Case>& cases() {
  static std::vector<Case> all;
  return all;
}

inline int& failures() {
  static int count = 0;
  return count;
}

struct Register {
  Register(const char* name, std::function<void()> body) { cases().push_back({name, std::move(body)}); }
};

struct Fatal : std::runtime_error {
  using std::runtime_error::runtime_error;
};

inline void report(const char* file, int line, const std::string& text) {
  std::cerr << file << ":" << line << ": " << text << "\n";
  ++failures();
}

// Runs the cases whose name contains `filter`; returns the number of failed checks.
int run_cases(const std::string& filter);

}  // namespace hvd::testing

#define HVD_JOIN2(a, b) a##b
#define HVD_JOIN(a, b) HVD_JOIN2(a, b)
#define TEST(name)                                                                              \
  static void HVD_JOIN(test_body_, __LINE__)();                                                 \
  static const hvd::testing::Register HVD_JOIN(test_case_, __LINE__)(name, HVD_JOIN(test_body_, __LINE__)); \
  static void HVD_JOIN(test_body_, __LINE__)()

#define CHECK(condition)                                                                        \
  do {                                                                                          \
    if (!(condition)) hvd::testing::report(__FILE__, __LINE__, "CHECK failed: " #condition);     \
  } while (false)

#define CHECK_EQ(a, b)                                                                          \
  do {                                                                                          \
    const auto& left_ = (a);                                                                    \
    const auto& right_ = (b);                                                                   \
    if (!(left_ == right_)) {                                                                   \
      std::ostringstream text_;                                                                 \
      text_ << "CHECK_EQ failed: " #a " is " << left_ << ", " #b " is " << right_;              \
      hvd::testing::report(__FILE__, __LINE__, text_.str());                                    \
    }                                                                                           \
  } while (false)

#define REQUIRE(condition)                                                                      \
  do {                                                                                          \
    if (!(condition)) {                                                                         \
      hvd::testing::report(__FILE__, __LINE__, "REQUIRE failed: " #condition);                   \
      throw hvd::testing::Fatal(#condition);                                                    \
    }                                                                                           \
  } while (false)
