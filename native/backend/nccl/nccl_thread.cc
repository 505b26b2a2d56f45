#include "backend/nccl/nccl_thread.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <algorithm>
#include <condition_variable>

namespace hvd::nccl {
namespace {

// NCCL is asked without a pause for this long after something happened.
constexpr Duration kAskAtOnceTime = std::chrono::microseconds(200);
// Then with pauses of this part of the time that nothing happened: by so much may the end be noticed late.
constexpr int kPausePart = 16;
constexpr Duration kShortestPause = std::chrono::microseconds(50);
constexpr Duration kLongestPause = std::chrono::milliseconds(1);
constexpr Duration kLongestDevicePause = std::chrono::milliseconds(5);
// Whoever ends something waits at most for this long. The thread has a part of it to notice; then it hangs in a call.
constexpr Duration kLastTime = std::chrono::seconds(2);
constexpr Duration kNoticeTime = std::chrono::milliseconds(300);
constexpr Duration kGoodOrderTime = std::chrono::seconds(1);

TimePoint steady_now() { return std::chrono::steady_clock::now(); }

}  // namespace

struct NcclThread::State {
  std::shared_ptr<Signal> signal;
  std::mutex mutex;
  std::condition_variable wake;  // of the thread
  std::deque<Order> orders;
  std::vector<std::shared_ptr<Communicator>> communicators;  // changed by the thread only
  std::optional<std::string> given_up;
  std::optional<TimePoint> stopping;
  std::atomic<bool> is_given_up{false};
  std::atomic<bool> ended{false};

  // Only of the thread.
  TimePoint last_event{};
};

NcclThread::NcclThread(std::shared_ptr<Signal> signal) : state_(std::make_shared<State>()) {
  state_->signal = std::move(signal);
  thread_ = std::thread([state = state_] { run(state); });
}

NcclThread::~NcclThread() {
  stop();
  if (state_->ended) {
    thread_.join();
  } else {
    thread_.detach();  // it hangs in a call
  }
}

void NcclThread::submit(Order order) {
  const std::lock_guard lock(state_->mutex);
  state_->orders.push_back(std::move(order));
  state_->wake.notify_one();
}

void NcclThread::add(std::shared_ptr<Communicator> communicator) { submit({std::move(communicator), nullptr, false}); }

void NcclThread::submit(std::shared_ptr<Communicator> communicator, std::shared_ptr<Task> task) {
  submit({std::move(communicator), std::move(task), false});
}

void NcclThread::retire(std::shared_ptr<Communicator> communicator) {
  submit({std::move(communicator), nullptr, true});
}

std::optional<std::string> NcclThread::given_up() const {
  const std::lock_guard lock(state_->mutex);
  return state_->given_up;
}

bool NcclThread::is_given_up() const { return state_->is_given_up; }

bool NcclThread::wait(const Task& task) const {
  return state_->signal->wait_for(kGoodOrderTime, [&] {
    const Task::Stage stage = task.stage();
    return stage == Task::Stage::kDone || stage == Task::Stage::kFailed;
  });
}

void NcclThread::give_up(const std::string& reason) {
  const TimePoint until = steady_now() + kLastTime;
  {
    const std::lock_guard lock(state_->mutex);
    if (state_->given_up) return;
    state_->given_up = reason;
    state_->is_given_up = true;
    state_->wake.notify_one();
  }
  end_all(state_->signal->wait_for(kNoticeTime, [&] { return state_->ended.load(); }), until);
}

void NcclThread::stop() {
  const TimePoint until = steady_now() + kLastTime;
  {
    const std::lock_guard lock(state_->mutex);
    if (state_->stopping) return;
    state_->stopping = steady_now();
    state_->wake.notify_one();
  }
  const bool ended = state_->signal->wait_for(kGoodOrderTime + kNoticeTime, [&] { return state_->ended.load(); });
  end_all(ended, until);
}

// Of communicators that could not be ended in good order.
void NcclThread::end_all(bool thread_reacts, TimePoint until) {
  std::vector<std::shared_ptr<Communicator>> communicators;
  {
    const std::lock_guard lock(state_->mutex);
    communicators = state_->communicators;
  }
  if (!thread_reacts) {
    for (const auto& communicator : communicators) communicator->abort();
  }
  state_->signal->wait_for(until - steady_now(), [&] {
    return std::all_of(communicators.begin(), communicators.end(), [](const auto& each) { return each->ended(); });
  });
}

void NcclThread::run(const std::shared_ptr<State>& state) {
  sigset_t all_signals;
  sigfillset(&all_signals);
  pthread_sigmask(SIG_BLOCK, &all_signals, nullptr);
  pthread_setname_np(pthread_self(), "hvd-nccl");
  State& self = *state;
  std::unique_lock lock(self.mutex);
  while (!self.given_up) {
    std::deque<Order> orders = std::exchange(self.orders, {});
    for (const Order& order : orders) {
      const bool is_new = order.task == nullptr && !order.retires;
      if (is_new) self.communicators.push_back(order.communicator);
    }
    if (self.stopping) {
      for (const auto& communicator : self.communicators) communicator->retire();
    }
    lock.unlock();
    const bool progressed = turn(self, std::move(orders));
    if (progressed) self.signal->notify();
    lock.lock();
    std::erase_if(self.communicators, [](const auto& each) { return each->closed() && each->ended(); });
    if (self.stopping && self.communicators.empty() && self.orders.empty()) break;
    if (self.stopping && steady_now() - *self.stopping >= kGoodOrderTime) break;
    sleep(self, lock, progressed);
  }
  abort_all(self);
  lock.unlock();
  self.ended = true;
  self.signal->notify();
}

// Turns every communicator once; returns whether something happened.
bool NcclThread::turn(State& state, std::deque<Order> orders) {
  bool progressed = !orders.empty();
  for (Order& order : orders) {
    if (order.task != nullptr) order.communicator->add(std::move(order.task));
    if (order.retires) order.communicator->retire();
  }
  const TimePoint now = steady_now();
  for (const auto& communicator : state.communicators) progressed = communicator->turn(now) || progressed;
  if (progressed) state.last_event = now;
  return progressed;
}

void NcclThread::sleep(State& state, std::unique_lock<std::mutex>& lock, bool progressed) {
  if (progressed) return;
  Attention attention = Attention::kNone;
  for (const auto& communicator : state.communicators) attention = std::max(attention, communicator->attention());
  const bool was_stopping = state.stopping.has_value();
  if (was_stopping) attention = std::max(attention, Attention::kDevice);
  const auto is_called = [&] {
    return !state.orders.empty() || state.given_up || state.stopping.has_value() != was_stopping;
  };
  if (attention == Attention::kNone) {
    state.wake.wait(lock, is_called);
    state.last_event = steady_now();
    return;
  }
  const Duration idle = steady_now() - state.last_event;
  if (attention == Attention::kLibrary && idle < kAskAtOnceTime) {
    lock.unlock();
    sched_yield();
    lock.lock();
    return;
  }
  const Duration longest = attention == Attention::kLibrary ? kLongestPause : kLongestDevicePause;
  state.wake.wait_for(lock, std::clamp<Duration>(idle / kPausePart, kShortestPause, longest), is_called);
}

// With the mutex held.
void NcclThread::abort_all(State& state) {
  const std::string reason = state.given_up.value_or("the engine ended");
  const Error error(ErrorKind::kInternal, "NCCL was given up: " + reason);
  for (const Order& order : state.orders) {
    if (order.task != nullptr) order.communicator->add(order.task);
    const auto known = std::find(state.communicators.begin(), state.communicators.end(), order.communicator);
    if (known == state.communicators.end()) state.communicators.push_back(order.communicator);
  }
  state.orders.clear();
  for (const auto& communicator : state.communicators) communicator->break_off(error);
}

}  // namespace hvd::nccl
