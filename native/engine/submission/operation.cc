#include "engine/submission/operation.h"

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

bool DeviceWork::ended() const {
  switch (state_.load(std::memory_order_acquire)) {
    case State::kSettled:
      return true;
    case State::kBusy:
    case State::kLost:
      return false;
    case State::kFailed:
      break;
  }
  try {
    return std::all_of(finished.begin(), finished.end(), [](const auto& event) { return event->reached(); });
  } catch (const Error&) {
    return false;  // the device does not work any more
  }
}

std::optional<Error> DeviceWork::error() const {
  const State state = state_.load(std::memory_order_acquire);
  return state == State::kFailed || state == State::kLost ? error_ : std::nullopt;
}

void DeviceWork::settle() {
  State expected = State::kBusy;
  state_.compare_exchange_strong(expected, State::kSettled, std::memory_order_release, std::memory_order_relaxed);
}

void DeviceWork::settle_with(const Error& error, bool known_end) {
  const State state = state_.load(std::memory_order_relaxed);
  if (state == State::kSettled) return;
  if (state == State::kBusy) error_ = error;
  if (state == State::kBusy || !known_end) {
    state_.store(known_end ? State::kFailed : State::kLost, std::memory_order_release);
  }
}

Operation::~Operation() {
  if (has_notice()) delete notice_.load();
  if (request.keeper == nullptr || !done() || device_has_ended()) return;
  [[maybe_unused]] const auto* leaked = request.keeper.release();  // the device may still write to it
}

bool Operation::device_has_ended() const {
  return gpu.device == kCpuDevice || spec.kind == OpKind::kJoin || gpu.ended();
}

bool Operation::wait_done(Duration timeout) const {
  const TimePoint until = std::chrono::steady_clock::now() + timeout;
  while (!done()) {
    const Duration left = until - std::chrono::steady_clock::now();
    if (left <= Duration::zero()) return false;
    uint32_t pending = kPending;
    ended_.compare_exchange_strong(pending, kAwaited, std::memory_order_acq_rel);
    futex_wait(ended_, kAwaited, left);
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

// Stands for the notice of an operation that has ended.
Operation::Notice& Operation::told() {
  static auto* const made = new Notice();  // outlives all operations
  return *made;
}

bool Operation::notify(Notice notice) {
  auto added = std::make_unique<Notice>(std::move(notice));
  Notice* found = nullptr;
  if (notice_.compare_exchange_strong(found, added.get(), std::memory_order_acq_rel)) {
    [[maybe_unused]] const Notice* kept = added.release();
    return true;
  }
  if (found != &told()) return false;
  (*added)();
  return true;
}

void Operation::finish() {
  if (ended_.exchange(kDone, std::memory_order_acq_rel) == kAwaited) futex_wake_all(ended_);
  const std::unique_ptr<Notice> due(notice_.exchange(&told(), std::memory_order_acq_rel));
  if (due != nullptr) (*due)();
}

}  // namespace hvd
