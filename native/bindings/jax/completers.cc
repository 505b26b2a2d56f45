#include "bindings/jax/completers.h"

#include <csignal>
#include <thread>
#include <utility>

namespace hvd::jax {
namespace {

constexpr size_t kMostIdle = 4;

}  // namespace

void Completers::add(std::function<void()> task) {
  bool is_short = false;
  {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
    is_short = tasks_.size() > idle_;
  }
  if (is_short) {
    start_thread();
  } else {
    changed_.notify_one();
  }
}

// Without signals, which are for the program's own threads.
void Completers::start_thread() {
  sigset_t all_signals;
  sigset_t before;
  sigfillset(&all_signals);
  pthread_sigmask(SIG_BLOCK, &all_signals, &before);
  std::thread([this] { run(); }).detach();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void Completers::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    if (tasks_.empty() && idle_ >= kMostIdle) return;
    ++idle_;
    changed_.wait(lock, [this] { return !tasks_.empty(); });
    --idle_;
    {
      const std::function<void()> task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      task();
    }
    lock.lock();
  }
}

Completers& completers() {
  static auto* made = new Completers();
  return *made;
}

}  // namespace hvd::jax
