#include "engine/operation.h"

#include <algorithm>
#include <new>

#include "base/futex.h"

namespace hvd {

OwnedArray make_array(DType dtype, Shape shape) {
  constexpr std::align_val_t kAlignment{64};
  OwnedArray array{dtype, std::move(shape), nullptr};
  const size_t bytes = static_cast<size_t>(num_elements(array.shape)) * size_of(dtype);
  auto* memory = static_cast<std::byte*>(::operator new[](std::max<size_t>(bytes, 1), kAlignment));
  array.data = std::shared_ptr<std::byte[]>(memory, [](std::byte* data) { ::operator delete[](data, kAlignment); });
  return array;
}

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
