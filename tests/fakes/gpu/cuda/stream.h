// A stream is a thread that does what is queued, one after the other, so that what does not wait comes too early.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "cuda/codes.h"

namespace fake_cuda {

inline constexpr std::chrono::seconds kPatience{60};
// How soon something that waits notices that its device has failed.
inline constexpr std::chrono::milliseconds kGlance{10};

struct Device {
  int number = 0;  // on the machine
  std::atomic<Result> error{kSuccess};
  std::atomic<bool> held{false};
  std::atomic<int> contexts_made{0};
};

class Stream {
 public:
  using Work = std::function<void()>;

  Stream(Device& device, const void* context, unsigned flags, int priority);
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream();

  // Returns the place of the work in the stream.
  uint64_t add(Work work);
  [[nodiscard]] uint64_t last() const;
  [[nodiscard]] bool reached(uint64_t place) const;
  // Waits until it is; not longer than kPatience, nor than the device of `waiter` works. Returns whether it is.
  bool wait_until_reached(uint64_t place, const Stream* waiter) const;

  void hold(bool held) { held_ = held; }
  // The thread ends when all is done.
  void close();
  // Now: the process ends, or the context does.
  void stop();
  // Whether the thread has ended and was joined.
  bool try_join(std::chrono::milliseconds patience);
  void abandon();

  [[nodiscard]] Device& device() const { return device_; }
  [[nodiscard]] const void* context() const { return context_; }
  [[nodiscard]] unsigned flags() const { return flags_; }
  [[nodiscard]] int priority() const { return priority_; }
  [[nodiscard]] bool waits_for_default() const { return (flags_ & 1) == 0; }
  [[nodiscard]] bool is_ending() const { return stopped_ || device_.error != kSuccess; }

 private:
  void run();
  bool next(Work& work);
  void wait_while_held();

  Device& device_;
  const void* context_;
  unsigned flags_;
  int priority_;
  std::atomic<bool> held_{false};
  std::atomic<bool> stopped_{false};
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::deque<Work> queue_;
  uint64_t num_added_ = 0;
  uint64_t num_done_ = 0;
  bool closed_ = false;
  bool ended_ = false;
  std::thread thread_;
};

}  // namespace fake_cuda
