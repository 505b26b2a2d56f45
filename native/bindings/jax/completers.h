// The threads that complete futures. XLA runs what follows in a program on the thread that completes a future, so that
// must not be the engine's; and what follows may wait for another future, so there is always a thread for each one.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>

namespace hvd::jax {

class Completers {
 public:
  // Runs the task soon, on a thread that may be blocked.
  void add(std::function<void()> task);

 private:
  void start_thread();
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  size_t idle_ = 0;
};

// Never destroyed: programs may run until the process ends.
[[nodiscard]] Completers& completers();

}  // namespace hvd::jax
