#include "backend/mpi/mpi_thread.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <deque>
#include <thread>

namespace hvd::mpi {
namespace {

// A task in flight is asked about without a pause for this long after something happened.
constexpr Duration kAskAtOnceTime = std::chrono::microseconds(200);
// Then with pauses of this part of the time that nothing happened: by so much may the end be noticed late.
constexpr int kPausePart = 16;
constexpr Duration kLongestPause = std::chrono::milliseconds(1);
// Whoever waits for tasks is rung that often even so: it may have other reasons to give up.
constexpr Duration kRingPeriod = std::chrono::milliseconds(500);
// MPI notices a rank's death too, in words of its own; the connections, which tell who it was, may take that long.
constexpr Duration kBetterReasonTime = std::chrono::seconds(1);
// How long a call may take that was on its way when MPI was given up.
constexpr Duration kLastCallTime = std::chrono::seconds(2);

TimePoint steady_now() { return std::chrono::steady_clock::now(); }

// Memory that MPI may still write to, for the rest of the process.
void keep_forever(const std::vector<std::shared_ptr<Ticket>>& tickets) {
  static std::mutex mutex;
  static auto* kept = new std::vector<std::shared_ptr<Ticket>>();
  const std::lock_guard lock(mutex);
  kept->insert(kept->end(), tickets.begin(), tickets.end());
}

}  // namespace

void Context::check(int code, const char* call) const {
  if (code == kSuccess) return;
  std::array<char, kMaxErrorString> text{};
  int length = 0;
  functions.error_string(code, text.data(), &length);
  throw Error(ErrorKind::kInternal, who + ": " + call + " failed: " + text.data());
}

struct MpiThread::State {
  std::mutex mutex;
  std::condition_variable wake;     // of the thread
  std::condition_variable changed;  // for those who wait for it
  std::deque<std::shared_ptr<Ticket>> queue;
  std::optional<std::string> given_up;
  bool stopping = false;
  bool in_mpi = false;
  bool ended = false;
  std::atomic<bool> abandoned{false};

  // Only of the thread.
  Context context;
  std::vector<std::shared_ptr<Ticket>> in_flight;
  TimePoint last_event{};
  TimePoint last_ring{};
};

MpiThread::MpiThread(const Functions& functions) : state_(std::make_shared<State>()) {
  state_->context.functions = functions;
  std::thread([state = state_] { run(state); }).detach();
}

MpiThread::~MpiThread() {
  if (!state_->abandoned) stop(kLastCallTime);
}

std::shared_ptr<Ticket> MpiThread::submit(std::unique_ptr<Task> task, std::shared_ptr<Bell> bell) {
  auto ticket = std::make_shared<Ticket>(std::move(task), std::move(bell));
  const std::lock_guard lock(state_->mutex);
  if (state_->given_up || state_->stopping) {
    end(*ticket, Error(ErrorKind::kInternal, "MPI cannot be used any more: " + state_->given_up.value_or("it ended")));
    return ticket;
  }
  state_->queue.push_back(ticket);
  state_->wake.notify_one();
  return ticket;
}

bool MpiThread::wait(const Ticket& ticket, Duration timeout) {
  std::unique_lock lock(state_->mutex);
  return state_->changed.wait_for(lock, timeout, [&] { return ticket.done(); });
}

void MpiThread::give_up(const std::string& reason) {
  std::unique_lock lock(state_->mutex);
  if (state_->given_up || state_->abandoned) return;
  state_->given_up = reason;
  state_->wake.notify_one();
  state_->changed.wait_for(lock, kLastCallTime, [&] { return !state_->in_mpi; });
}

std::optional<std::string> MpiThread::given_up() const {
  const std::lock_guard lock(state_->mutex);
  return state_->given_up;
}

bool MpiThread::stop(Duration timeout) {
  std::unique_lock lock(state_->mutex);
  state_->stopping = true;
  state_->wake.notify_one();
  return state_->changed.wait_for(lock, timeout, [&] { return state_->ended; });
}

// Takes no lock: the thread may have held it at the fork. The state is kept, as MPI's own threads are gone too.
void MpiThread::abandon() {
  if (state_->abandoned.exchange(true)) return;
  static_cast<void>(new std::shared_ptr<State>(state_));
}

void MpiThread::run(const std::shared_ptr<State>& state) {
  sigset_t all_signals;
  sigfillset(&all_signals);
  pthread_sigmask(SIG_BLOCK, &all_signals, nullptr);
  pthread_setname_np(pthread_self(), "hvd-mpi");
  State& self = *state;
  std::unique_lock lock(self.mutex);
  while (!self.given_up) {
    if (self.queue.empty() && self.in_flight.empty()) {
      if (self.stopping) break;
      self.wake.wait(lock, [&] { return !self.queue.empty() || self.stopping || self.given_up; });
      self.last_event = steady_now();
      continue;
    }
    std::vector<std::shared_ptr<Ticket>> added(self.queue.begin(), self.queue.end());
    self.queue.clear();
    self.in_mpi = true;
    lock.unlock();
    const bool progressed = turn(self, std::move(added));
    const Duration idle = steady_now() - self.last_event;
    if (!progressed && idle < kAskAtOnceTime) sched_yield();
    lock.lock();
    self.in_mpi = false;
    if (progressed || self.given_up) self.changed.notify_all();
    if (progressed || idle < kAskAtOnceTime) continue;
    self.wake.wait_for(lock, std::min<Duration>(idle / kPausePart, kLongestPause),
                       [&] { return !self.queue.empty() || self.given_up; });
  }
  drop_all(self);
  self.ended = true;
  self.changed.notify_all();
}

// Asks about everything once; returns whether something happened.
bool MpiThread::turn(State& state, std::vector<std::shared_ptr<Ticket>> added) {
  bool progressed = !added.empty();
  for (auto& ticket : added) {
    state.in_flight.push_back(std::move(ticket));
    if (!advance(state, state.in_flight.back())) state.in_flight.pop_back();
  }
  for (size_t i = 0; i < state.in_flight.size();) {
    const std::shared_ptr<Ticket>& ticket = state.in_flight[i];
    if (!is_complete(state, *ticket)) {
      ++i;
      continue;
    }
    progressed = true;
    if (advance(state, ticket)) {
      ++i;
    } else {
      state.in_flight.erase(state.in_flight.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }
  const TimePoint now = steady_now();
  if (progressed) state.last_event = now;
  if (now - state.last_ring < kRingPeriod) return progressed;
  state.last_ring = now;
  for (const auto& ticket : state.in_flight) {
    if (ticket->bell_ != nullptr) ticket->bell_->ring();
  }
  return progressed;
}

// Whether MPI is done with all requests of the task, or one has failed long enough ago.
bool MpiThread::is_complete(State& state, Ticket& ticket) {
  if (ticket.error_) return steady_now() - ticket.failed_ >= kBetterReasonTime;
  int complete = 0;
  const int code = state.context.functions.testall(static_cast<int>(ticket.requests_.size()), ticket.requests_.data(),
                                                   &complete, statuses_ignore());
  try {
    state.context.check(code, "MPI_Testall");
  } catch (const Error& error) {
    ticket.fail(error);
    return false;
  }
  if (complete != 0) ticket.requests_.clear();
  return complete != 0;
}

// Returns whether the task is still in flight.
bool MpiThread::advance(State& state, const std::shared_ptr<Ticket>& ticket) {
  try {
    if (!ticket->error_ && ticket->task_->go_on(state.context, ticket->requests_)) return true;
  } catch (const Error& error) {
    ticket->fail(error);
    if (ticket->bell_ != nullptr) return true;
  }
  if (!ticket->requests_.empty()) keep_forever({ticket});
  end(*ticket);
  return false;
}

void MpiThread::end(Ticket& ticket, const std::optional<Error>& error) {
  if (error) ticket.error_ = error;
  const std::shared_ptr<Bell> bell = ticket.bell_;
  ticket.done_.store(true, std::memory_order_release);
  if (bell != nullptr) bell->ring();
}

// With the mutex held.
void MpiThread::drop_all(State& state) {
  const Error error(ErrorKind::kInternal, "MPI was given up: " + state.given_up.value_or("it ended"));
  const std::vector<std::shared_ptr<Ticket>> left(std::move(state.in_flight));
  for (const auto& ticket : left) {
    end(*ticket, error);
  }
  keep_forever(left);
  for (const auto& ticket : state.queue) {
    end(*ticket, error);
  }
  state.queue.clear();
}

}  // namespace hvd::mpi
