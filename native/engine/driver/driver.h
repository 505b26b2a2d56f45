// Who makes the engine go on, and when it sleeps: the engine's thread, which sleeps in epoll while there is nothing to
// do, or a caller that waits for its operation and spares the switch to another thread. One of them at a time.
#pragma once

#include <atomic>
#include <optional>
#include <thread>

#include "engine/driver/machine.h"
#include "engine/submission/locked.h"

namespace hvd {

struct DriverOptions {
  int core = -1;                    // that the thread is bound to, if not negative
  bool core_for_each_rank = false;  // of this host
};

class Driver {
 public:
  Driver(const DriverOptions& options, const Machine::Neighbors& neighbors, Backends backends,
         const MachineOptions& machine);
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;
  // The thread has ended, or was left behind.
  ~Driver() = default;

  // Returns whether the operation is done; waits for it at most for `timeout`, driving if nobody else does. Calls what
  // other operations want to have called when they are done.
  bool wait(Operation& operation, Duration timeout);

  [[nodiscard]] bool runs() const { return thread_.joinable(); }
  // Waits until the machine has closed; nobody drives it any more.
  [[nodiscard]] Locked<Machine> join();
  // In the child of a fork, where there is no such thread.
  void leave_thread_behind();

 private:
  using Driving = Locked<Machine>;

  void run();
  // One turn of the thread: drives until there is nothing to do. Returns false when the machine has closed.
  bool turn();
  // The same when the program has closed what the thread sleeps on.
  bool turn_without_descriptors();
  bool try_turn();
  // Until something happens.
  void sleep_in_epoll(std::optional<Duration> timeout);
  [[nodiscard]] std::optional<Driving> take_drive(const Operation& operation);
  void drive(const Driving& machine, const Operation& operation, TimePoint until);
  bool pass(const Driving& machine);
  [[nodiscard]] bool gives_way(const Driving& machine) const;
  // `yields_to_callers`: ends when a caller wants to drive.
  [[nodiscard]] bool spin(const Driving& machine, uint32_t seen, Duration at_most, bool yields_to_callers);
  void sleep_at_once_for_a_while(TimePoint now, bool remote);
  void sleep(const Driving& machine, uint32_t seen, Duration limit);

  const DriverOptions options_;
  const JobInfo& job_;
  Transport& transport_;
  Submission& submission_;
  Guarded<Machine> machine_;
  // Of the thread that drives.
  TimePoint sleep_at_once_until_{};    // yielding the core costs too much until then
  Duration sleep_at_once_{};           // how long that was decided for
  bool sleeps_on_futex_ = false;       // the engine's thread, as its descriptors do not work
  bool thread_checks_stalls_ = false;  // the sleep of the engine's thread ends in time for the next check

  std::atomic<bool> look_for_lost_{false};
  std::atomic<bool> thread_watches_{false};  // the engine's thread is in epoll
  std::atomic<bool> caller_drives_{false};
  std::atomic<int> num_waiters_{0};
  std::atomic<int> num_would_drive_{0};  // callers that look for the lock to be free
  std::thread thread_;
};

}  // namespace hvd
