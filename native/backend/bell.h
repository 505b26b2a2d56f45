// Rings whoever drives the engine, from any thread, until it is told not to.
#pragma once

#include <functional>
#include <mutex>
#include <utility>

namespace hvd {

class Bell {
 public:
  explicit Bell(std::function<void()> ring) : ring_(std::move(ring)) {}
  void ring() {
    const std::lock_guard lock(mutex_);
    if (ring_) ring_();
  }
  void silence() {
    const std::lock_guard lock(mutex_);
    ring_ = nullptr;
  }

 private:
  std::mutex mutex_;
  std::function<void()> ring_;
};

}  // namespace hvd
