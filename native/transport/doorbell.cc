#include "transport/doorbell.h"

#include <unistd.h>

#include "base/futex.h"

namespace hvd {

void Doorbell::ring() const {
  words_->events.fetch_add(1, std::memory_order_seq_cst);
  if (words_->sleeping.load(std::memory_order_seq_cst) == 0) return;
  const auto how = static_cast<Sleep>(words_->sleeping.exchange(0, std::memory_order_seq_cst));
  if (how == Sleep::kFutex) futex_wake_all(words_->events);
  if (how == Sleep::kEventFd) {
    const uint64_t one = 1;
    [[maybe_unused]] const auto written = write(event_fd_, &one, sizeof(one));  // only fails when the rank is gone
  }
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
