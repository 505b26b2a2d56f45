// How a rank is woken: a counter that peers raise after every change they make, and the sleeper's wish to be woken.
//
// The words lie in the rank's segment, so peers reach them without a system call while the rank is awake. The counter
// makes sleeping safe: who wants to sleep remembers the count before it looks for work, and sleeps only if the count is
// still the same.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <optional>

#include "base/clock.h"

namespace hvd {

// How a rank sleeps: its engine thread in epoll_wait on an eventfd, a waiting caller on a futex. kAway: as kEventFd,
// but a caller that drove has just left and is likely to come again, which is sooner than the thread would be awake.
enum class Sleep : uint32_t { kAwake = 0, kEventFd = 1, kFutex = 2, kAway = 3 };

struct DoorbellWords {
  alignas(64) std::atomic<uint32_t> events{0};
  alignas(64) std::atomic<uint32_t> sleeping{0};
};

// The number of an eventfd that a program may close though it is not its own, as code that makes a daemon does.
class EventFd {
 public:
  explicit EventFd(int fd);

  // Adds one; returns false if the number stands for nothing, or for something else, to which nothing is written.
  [[nodiscard]] bool notify() const;

 private:
  [[nodiscard]] bool is_still_open() const;

  int fd_;
  dev_t device_ = 0;
  ino_t file_ = 0;
  mode_t mode_ = 0;
};

class Doorbell {
 public:
  // `broken` is set when the rank could not be woken. `timer_fd`: of the rank's own doorbell, a timer that wakes its
  // thread out of epoll. `owes`: of a peer's doorbell, is set when a rank was rung that is away.
  Doorbell(DoorbellWords* words, int event_fd, std::atomic<bool>* broken = nullptr, int timer_fd = -1,
           std::atomic<bool>* owes = nullptr)
      : words_(words), event_(event_fd), broken_(broken), timer_fd_(timer_fd), owes_(owes) {}

  // Says that something changed; wakes the rank if it sleeps. A peer that is away is not woken: before the caller stops
  // to look for answers, it calls wake_away(). Returns false if the rank sleeps on, because the descriptor was closed
  // in this process; others may still wake it.
  bool ring() const;  // NOLINT(modernize-use-nodiscard): `broken` says it, too

  // Wakes the rank's thread if the rank is still away.
  void wake_away() const;

  // If the rank sleeps in epoll, wakes it after this time, says that something changed, and returns true.
  [[nodiscard]] bool ring_in(Duration time) const;

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
  // Wakes who sleeps like this, as the word has said; returns what ring() does.
  bool wake(Sleep how) const;  // NOLINT(modernize-use-nodiscard)

  DoorbellWords* words_;
  EventFd event_;
  std::atomic<bool>* broken_;
  int timer_fd_;
  std::atomic<bool>* owes_;
};

}  // namespace hvd
