#include "engine/operation.h"

#include <algorithm>
#include <mutex>
#include <new>

#include "base/futex.h"

namespace hvd {

OwnedArray make_array(DType dtype, Shape shape) {
  constexpr std::align_val_t kAlignment{64};
  OwnedArray array{.dtype = dtype, .shape = std::move(shape), .data = nullptr};
  auto* memory = static_cast<std::byte*>(::operator new[](std::max<size_t>(array.bytes(), 1), kAlignment));
  array.data = std::shared_ptr<std::byte[]>(memory, [](std::byte* data) { ::operator delete[](data, kAlignment); });
  return array;
}

void keep_for_ever(std::shared_ptr<Operation> operation) {
  static std::mutex mutex;
  static auto* const kept = new std::vector<std::shared_ptr<Operation>>();  // outlives all that could free it
  const std::lock_guard lock(mutex);
  kept->push_back(std::move(operation));
}

Operation::~Operation() {
  if (keeper == nullptr || !done() || device_has_ended()) return;
  [[maybe_unused]] const auto* leaked = keeper.release();  // the device may still write to it
}

bool Operation::device_has_ended() const {
  if (device == kCpuDevice || spec.kind == OpKind::kJoin) return true;
  switch (device_.load(std::memory_order_acquire)) {
    case Device::kSettled:
      return true;
    case Device::kBusy:
    case Device::kLost:
      return false;
    case Device::kFailed:
      break;
  }
  try {
    return std::all_of(finished.begin(), finished.end(), [](const auto& event) { return event->reached(); });
  } catch (const Error&) {
    return false;  // the device does not work any more
  }
}

std::optional<Error> Operation::device_error() const {
  const Device state = device_.load(std::memory_order_acquire);
  return state == Device::kFailed || state == Device::kLost ? device_error_ : std::nullopt;
}

void Operation::settle() {
  Device expected = Device::kBusy;
  device_.compare_exchange_strong(expected, Device::kSettled, std::memory_order_release, std::memory_order_relaxed);
}

void Operation::settle_with(const Error& error, bool known_end) {
  const Device state = device_.load(std::memory_order_relaxed);
  if (state == Device::kSettled) return;
  if (state == Device::kBusy) device_error_ = error;
  if (state == Device::kBusy || !known_end) {
    device_.store(known_end ? Device::kFailed : Device::kLost, std::memory_order_release);
  }
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
