#include "cuda/stream.h"

#include "cuda/settings.h"

namespace fake_cuda {

Stream::Stream(Device& device, const void* context, unsigned flags, int priority)
    : device_(device), context_(context), flags_(flags), priority_(priority), thread_([this] { run(); }) {}

Stream::~Stream() {
  stop();
  if (thread_.joinable()) thread_.join();
}

uint64_t Stream::add(Work work) {
  const std::lock_guard lock(mutex_);
  queue_.push_back(std::move(work));
  changed_.notify_all();
  return ++num_added_;
}

uint64_t Stream::last() const {
  const std::lock_guard lock(mutex_);
  return num_added_;
}

bool Stream::reached(uint64_t place) const {
  const std::lock_guard lock(mutex_);
  return num_done_ >= place;
}

bool Stream::wait_until_reached(uint64_t place, const Stream* waiter) const {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  std::unique_lock lock(mutex_);
  while (num_done_ < place) {
    if (is_ending() || (waiter != nullptr && waiter->is_ending())) return false;
    if (std::chrono::steady_clock::now() > deadline) return false;
    changed_.wait_for(lock, kGlance);
  }
  return true;
}

void Stream::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  changed_.notify_all();
}

void Stream::stop() {
  stopped_ = true;
  close();
}

bool Stream::try_join(std::chrono::milliseconds patience) {
  {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, patience, [this] { return ended_; })) return false;
  }
  if (thread_.joinable()) thread_.join();
  return true;
}

void Stream::abandon() {
  if (thread_.joinable()) thread_.detach();
}

// Returns false at the end.
bool Stream::next(Work& work) {
  std::unique_lock lock(mutex_);
  while (queue_.empty() && !closed_) changed_.wait_for(lock, kPatience);
  if (queue_.empty()) return false;
  work = std::move(queue_.front());
  queue_.pop_front();
  return true;
}

void Stream::wait_while_held() {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while ((held_ || device_.held) && !is_ending()) {
    if (std::chrono::steady_clock::now() > deadline) {
      device_.error = kLaunchTimeout;
      note_wrong_use("a stream was held for 60 s");
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void Stream::run() {
  for (Work work; next(work); work = nullptr) {
    if (const int delay = settings().delay_us; delay > 0) std::this_thread::sleep_for(std::chrono::microseconds(delay));
    wait_while_held();
    if (!is_ending()) work();
    work = nullptr;
    const std::lock_guard lock(mutex_);
    ++num_done_;
    changed_.notify_all();
  }
  const std::lock_guard lock(mutex_);
  ended_ = true;
  changed_.notify_all();
}

}  // namespace fake_cuda
