// How a rank is woken: a counter that peers raise after every change they make, and the sleeper's wish to be woken.
//
// The words lie in the rank's segment, so peers reach them without a system call while the rank is awake. The counter
// makes sleeping safe: who wants to sleep remembers the count before it looks for work, and sleeps only if the count is
// still the same.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "base/clock.h"

namespace hvd {

// How a rank sleeps: its engine thread in epoll_wait on an eventfd, a waiting caller on a futex.
enum class Sleep : uint32_t { kAwake = 0, kEventFd = 1, kFutex = 2 };

struct DoorbellWords {
  alignas(64) std::atomic<uint32_t> events{0};
  alignas(64) std::atomic<uint32_t> sleeping{0};
};

class Doorbell {
 public:
  Doorbell(DoorbellWords* words, int event_fd) : words_(words), event_fd_(event_fd) {}

  // Says that something changed; wakes the rank if it sleeps.
  void ring() const;

  // Says that something changed without waking: whoever drives the rank sees it before it sleeps.
  void note() const { words_->events.fetch_add(1, std::memory_order_seq_cst); }

  // As ring(), but for the rank's own thread: wakes a caller of this rank, not the thread itself.
  void wake_caller() const;

  [[nodiscard]] uint32_t events() const { return words_->events.load(std::memory_order_acquire); }

  // Announces that this rank is about to sleep. Returns false if something changed since `seen`.
  [[nodiscard]] bool arm(Sleep how, uint32_t seen) const;
  void disarm() const { words_->sleeping.store(static_cast<uint32_t>(Sleep::kAwake), std::memory_order_seq_cst); }

  // Sleeps on the futex until the count differs from `seen`; at most for `timeout`.
  void wait_futex(uint32_t seen, std::optional<Duration> timeout) const;

 private:
  DoorbellWords* words_;
  int event_fd_;
};

}  // namespace hvd
