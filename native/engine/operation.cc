#include "engine/operation.h"

#include "base/futex.h"

namespace hvd {

bool Operation::wait_done(Duration timeout) const {
  const TimePoint until = std::chrono::steady_clock::now() + timeout;
  while (!done()) {
    const Duration left = until - std::chrono::steady_clock::now();
    if (left <= Duration::zero()) return false;
    futex_wait(state_, kPending, left);
  }
  return true;
}

void Operation::complete() {
  if (!done()) finish();
}

void Operation::fail(const Error& error) {
  if (done()) return;
  error_ = error;
  finish();
}

void Operation::finish() {
  state_.store(kDone, std::memory_order_release);
  futex_wake_all(state_);
}

}  // namespace hvd
