// The one thread of a process that calls MPI.
//
// MPI has no descriptor to sleep on, so somebody has to ask it again and again whether something is complete, and
// several of its calls wait for other ranks. Both would keep the engine from its other work, above all from noticing
// that a rank died. So the engine hands tasks over and is rung when they are done; it never calls MPI.
//
// The thread sleeps while it has nothing to do. While a task is in flight it asks at once again for a while, then with
// pauses that grow with the time that nothing happened, so that asking costs little and is late by little.
//
// After give_up() the thread never enters MPI again: what was in flight stays in MPI's hands, and its memory is kept.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "backend/bell.h"
#include "backend/mpi/abi.h"
#include "backend/mpi/staging.h"
#include "base/clock.h"
#include "base/error.h"

namespace hvd::mpi {

// What tasks work with; belongs to the thread.
struct Context {
  Functions functions;
  StagingPool staging;
  std::string who = "MPI";  // in messages, "rank 3"

  // Throws Error (kInternal) that names the call if the code is one of an error.
  void check(int code, const char* call) const;
};

class Task {
 public:
  Task() = default;
  Task(const Task&) = delete;
  Task& operator=(const Task&) = delete;
  virtual ~Task() = default;

  // Called at first, and whenever all of `requests` are complete; adds those that come next. Returns whether there are
  // any. Only the first call may start collectives: so their order is that of submit(), the same on all ranks.
  virtual bool go_on(Context& context, std::vector<Request>& requests) = 0;
};

// A task on its way.
class Ticket {
 public:
  Ticket(std::unique_ptr<Task> task, std::shared_ptr<Bell> bell) : task_(std::move(task)), bell_(std::move(bell)) {}

  [[nodiscard]] bool done() const { return done_.load(std::memory_order_acquire); }
  // Why it failed; only when it is done.
  [[nodiscard]] const std::optional<Error>& error() const { return error_; }

 private:
  friend class MpiThread;
  void fail(const Error& error) {
    error_ = error;
    failed_ = std::chrono::steady_clock::now();
  }

  std::unique_ptr<Task> task_;
  std::shared_ptr<Bell> bell_;  // may be null
  std::vector<Request> requests_;
  std::optional<Error> error_;
  TimePoint failed_{};
  std::atomic<bool> done_{false};
};

class MpiThread {
 public:
  explicit MpiThread(const Functions& functions);
  MpiThread(const MpiThread&) = delete;
  MpiThread& operator=(const MpiThread&) = delete;
  ~MpiThread();  // as stop(), but does not wait for MPI longer than a moment

  // Tasks are started in this order.
  std::shared_ptr<Ticket> submit(std::unique_ptr<Task> task, std::shared_ptr<Bell> bell = nullptr);
  // Returns whether the task is done; waits for it at most for `timeout`.
  bool wait(const Ticket& ticket, Duration timeout);

  // From now on MPI is not called any more; waits a moment until no call is left that writes into memory of tasks. All
  // tasks fail.
  void give_up(const std::string& reason);
  [[nodiscard]] std::optional<std::string> given_up() const;

  // Lets the tasks that were submitted end, then the thread. Returns whether it ended in time.
  bool stop(Duration timeout);
  // In the child of a fork, where the thread does not exist.
  void abandon();

 private:
  struct State;
  static void run(const std::shared_ptr<State>& state);
  static bool turn(State& state, std::vector<std::shared_ptr<Ticket>> added);
  static bool is_complete(State& state, Ticket& ticket);
  static bool advance(State& state, const std::shared_ptr<Ticket>& ticket);
  static void end(Ticket& ticket, const std::optional<Error>& error = std::nullopt);
  static void drop_all(State& state);

  std::shared_ptr<State> state_;
};

}  // namespace hvd::mpi
