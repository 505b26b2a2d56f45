// The threads of this process that wait for an operation for long, of whatever engine: to the other engines of the
// process they are idle.
#pragma once

#include <cstdint>

namespace hvd::bindings {

// The calling thread waits, from begin() to the end of this object.
class WaitsLong {
 public:
  WaitsLong() = default;
  WaitsLong(const WaitsLong&) = delete;
  WaitsLong& operator=(const WaitsLong&) = delete;
  ~WaitsLong();
  void begin();

 private:
  uint64_t thread_ = 0;
};

// By pthread_self().
[[nodiscard]] bool waits_long(uint64_t thread);

}  // namespace hvd::bindings
