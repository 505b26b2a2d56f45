// The one thread of an engine that calls NCCL.
//
// Calls of NCCL may take long, or never return when a rank or a network is lost, and between them NCCL has to be asked
// how far it is. Both would keep the engine from its other work, so it hands tasks over and is rung.
//
// The thread sleeps while nothing is in flight. While NCCL makes or launches something it is asked at once again for a
// while, then with pauses that grow; while only the device works, with longer ones, as callers do not wait for that.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "backend/nccl/communicator.h"

namespace hvd::nccl {

class NcclThread {
 public:
  explicit NcclThread(std::shared_ptr<Signal> signal);
  NcclThread(const NcclThread&) = delete;
  NcclThread& operator=(const NcclThread&) = delete;
  ~NcclThread();  // as stop()

  void add(std::shared_ptr<Communicator> communicator);
  // Tasks of a communicator are executed in this order.
  void submit(std::shared_ptr<Communicator> communicator, std::shared_ptr<Task> task);
  // When all its tasks are done.
  void retire(std::shared_ptr<Communicator> communicator);

  // Aborts all communicators, also if the thread hangs in a call. All tasks fail with this reason. Waits until the
  // device does nothing for them any more, at most 2 s; what it still does then, nobody can end.
  void give_up(const std::string& reason);
  [[nodiscard]] std::optional<std::string> given_up() const;
  [[nodiscard]] bool is_given_up() const;
  // For a moment that NCCL needs to end what is on the device; returns whether the task is done or failed.
  [[nodiscard]] bool wait(const Task& task) const;

  // Ends all communicators in good order, if they can in a second, then the thread. Does not wait longer than 2 s.
  void stop();

 private:
  struct Order {
    std::shared_ptr<Communicator> communicator;
    std::shared_ptr<Task> task;
    bool retires = false;
  };
  struct State;
  static void run(const std::shared_ptr<State>& state);
  static bool turn(State& state, std::deque<Order> orders);
  static void sleep(State& state, std::unique_lock<std::mutex>& lock, bool progressed);
  static void abort_all(State& state);
  void submit(Order order);
  void end_all(bool thread_reacts, TimePoint until);

  std::shared_ptr<State> state_;
  std::thread thread_;
};

}  // namespace hvd::nccl
