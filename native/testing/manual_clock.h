// A clock that stands still until a test moves it.
#pragma once

#include <atomic>

#include "base/clock.h"

namespace hvd::testing {

class ManualClock final : public Clock {
 public:
  [[nodiscard]] TimePoint now() const override { return TimePoint(Duration(nanoseconds_.load())); }
  void advance(Duration by) { nanoseconds_.fetch_add(by.count()); }

 private:
  std::atomic<Duration::rep> nanoseconds_{std::chrono::nanoseconds(std::chrono::hours(1)).count()};
};

}  // namespace hvd::testing
