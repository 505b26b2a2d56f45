#include "transport/doorbell.h"

#include <sys/stat.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <cerrno>

#include "base/error.h"
#include "base/futex.h"

namespace hvd {

EventFd::EventFd(int fd) : fd_(fd) {
  struct stat status = {};
  if (fstat(fd, &status) != 0) return;
  device_ = status.st_dev;
  file_ = status.st_ino;
  mode_ = status.st_mode;
}

// All eventfds share one file, so another one at this number is not told apart: it is woken in vain.
bool EventFd::is_still_open() const {
  struct stat status = {};
  return fstat(fd_, &status) == 0 && status.st_dev == device_ && status.st_ino == file_ && status.st_mode == mode_;
}

bool EventFd::notify() const {
  if (!is_still_open()) return false;
  const uint64_t one = 1;
  ssize_t written = 0;
  do {
    written = write(fd_, &one, sizeof(one));
  } while (written < 0 && errno == EINTR);
  return written == static_cast<ssize_t>(sizeof(one)) || errno == EAGAIN;  // full, so it wakes as well
}

bool Doorbell::ring() const {
  words_->events.fetch_add(1, std::memory_order_seq_cst);
  const auto sleeping = static_cast<Sleep>(words_->sleeping.load(std::memory_order_seq_cst));
  if (sleeping == Sleep::kAwake) return true;
  if (sleeping == Sleep::kAway && owes_ != nullptr) {
    owes_->store(true, std::memory_order_relaxed);
    return true;
  }
  return wake(static_cast<Sleep>(words_->sleeping.exchange(0, std::memory_order_seq_cst)));
}

void Doorbell::wake_away() const {
  auto how = static_cast<uint32_t>(Sleep::kAway);
  if (words_->sleeping.load(std::memory_order_seq_cst) != how) return;
  if (words_->sleeping.compare_exchange_strong(how, 0, std::memory_order_seq_cst)) wake(Sleep::kAway);
}

bool Doorbell::wake(Sleep how) const {
  if (how == Sleep::kAwake) return true;
  if (how == Sleep::kFutex) {
    futex_wake_all(words_->events);
    return true;
  }
  if (event_.notify()) return true;
  // Somebody else may wake it. If it has woken up meanwhile, that is in vain.
  uint32_t awake = 0;
  words_->sleeping.compare_exchange_strong(awake, static_cast<uint32_t>(how), std::memory_order_seq_cst);
  if (broken_ != nullptr) broken_->store(true, std::memory_order_relaxed);
  return false;
}

bool Doorbell::ring_in(Duration time) const {
  const auto sleeping = static_cast<Sleep>(words_->sleeping.load(std::memory_order_seq_cst));
  if (sleeping != Sleep::kEventFd && sleeping != Sleep::kAway) return false;
  const auto nanoseconds = std::chrono::duration_cast<std::chrono::nanoseconds>(time).count();
  const itimerspec when{.it_interval = {}, .it_value = {.tv_sec = 0, .tv_nsec = nanoseconds}};
  if (timerfd_settime(timer_fd_, 0, &when, nullptr) != 0) return false;
  note();
  return true;
}

void Doorbell::wake_caller() const {
  note();
  auto how = static_cast<uint32_t>(Sleep::kFutex);
  if (words_->sleeping.compare_exchange_strong(how, 0, std::memory_order_seq_cst)) futex_wake_all(words_->events);
}

bool Doorbell::arm(Sleep how, uint32_t seen) const {
  words_->sleeping.store(static_cast<uint32_t>(how), std::memory_order_seq_cst);
  return words_->events.load(std::memory_order_seq_cst) == seen;
}

void Doorbell::wait_futex(uint32_t seen, std::optional<Duration> timeout) const {
  if (arm(Sleep::kFutex, seen)) futex_wait(words_->events, seen, timeout);
  disarm();
}

}  // namespace hvd
