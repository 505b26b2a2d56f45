#include "engine/driver/driver.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <algorithm>
#include <utility>

namespace hvd {
namespace {

// A waiting caller looks this long for an answer before it sleeps.
constexpr Duration kSpinTime = std::chrono::microseconds(50);
// So much longer if each rank of this host has a core: one that falls asleep for a moment offers its core to the
// threads of other ranks, which then wait for each other there while another core is idle (docs/decisions/0029).
constexpr Duration kSpinTimeOnOwnCore = std::chrono::milliseconds(2);
// If each rank has a core, it yields only after so many looks, or about 1.6 µs: a yield takes half a microsecond, in
// which it does not look.
constexpr int kLooksBetweenYields = 64;
// And this long for the engine's thread to let it drive.
constexpr Duration kTakeOverTime = std::chrono::microseconds(20);
// A yield to another rank is back sooner than this.
constexpr Duration kLostCoreTime = std::chrono::microseconds(1500);
// How long this rank does not yield after that: the first time, as any thread may run once a second, and at most.
constexpr Duration kLeastSleepAtOnce = std::chrono::milliseconds(10);
constexpr Duration kMostSleepAtOnce = std::chrono::milliseconds(200);
// Peers on other hosts take longer: as long as two that sleep need to wake each other. Else ranks that once began to
// sleep would go on so.
constexpr Duration kRemoteSpinTime = std::chrono::microseconds(200);
constexpr Duration kRemoteLostCoreTime = std::chrono::microseconds(250);
constexpr Duration kSleepAfterVainSpin = std::chrono::milliseconds(2);
// How often a caller that drives looks at the connections when the engine's thread cannot.
constexpr Duration kWatchPeriod = std::chrono::milliseconds(100);
// How long peers on other hosts may have to wait for attention when a caller that drove is done, and nobody drives.
constexpr Duration kUnwatchedTime = std::chrono::microseconds(500);
// How long a rank of this host may be rung while it is away before its thread is woken: about what its caller takes to
// come again with the next tensor, where ranks share cores.
constexpr Duration kAwayTime = std::chrono::microseconds(50);
// How often a caller that is done looks at what came meanwhile: a look is cheaper than a switch to the engine's thread.
constexpr int kLastLooks = 2;
// While something is expected, nobody sleeps longer, so that no lost wake-up can hold a job for ever.
constexpr Duration kMostSleep = std::chrono::seconds(2);

void pause_core() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

TimePoint yield() {
  sched_yield();
  return std::chrono::steady_clock::now();
}

void bind_to_core(int core, const LogSink& log) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(static_cast<size_t>(core), &cores);
  if (pthread_setaffinity_np(pthread_self(), sizeof(cores), &cores) == 0) return;
  log(LogLevel::kWarning, "the engine's thread cannot be bound to core " + std::to_string(core) +
                              ": this process may not use it, or it does not exist");
}

// Without a lock, so that a callback may submit.
void call(const Completion::Callbacks& callbacks) {
  for (const auto& callback : callbacks) callback();
}

}  // namespace

Driver::Driver(const DriverOptions& options, const Machine::Neighbors& neighbors, Backends backends,
               const MachineOptions& machine)
    : options_(options),
      job_(neighbors.job),
      transport_(neighbors.transport),
      submission_(neighbors.submission),
      machine_(neighbors, std::move(backends), machine),
      thread_([this] { run(); }) {}

bool Driver::wait(Operation& operation, Duration timeout) {
  const TimePoint until = std::chrono::steady_clock::now() + timeout;
  while (!operation.done()) {
    std::optional<Driving> machine = take_drive(operation);
    if (machine && !(*machine)->closed()) {
      try {
        drive(*machine, operation, until);
      } catch (const Error& error) {  // it cannot sleep
        caller_drives_.store(false);
        (*machine)->give_up(error);
      }
      transport_.wake_away();
      const Completion::Callbacks callbacks = (*machine)->take_callbacks();
      machine.reset();
      call(callbacks);
    } else {
      machine.reset();
      submission_.wake();
      num_waiters_.fetch_add(1);
      operation.wait_done(until - std::chrono::steady_clock::now());
      num_waiters_.fetch_sub(1);
    }
    if (!operation.done() && std::chrono::steady_clock::now() >= until) break;
  }
  return operation.done();
}

// A caller that comes while the engine's thread has nothing to execute takes over: else the thread, which spins for the
// waiting caller, would keep the drive from one short operation to the next, at the cost of two switches for each.
std::optional<Driver::Driving> Driver::take_drive(const Operation& operation) {
  std::optional<Driving> taken = machine_.try_lock();
  if (taken) return taken;
  num_would_drive_.fetch_add(1);
  const TimePoint until = std::chrono::steady_clock::now() + kTakeOverTime;
  do {
    for (int i = 0; i < 16 && !taken; ++i) {
      pause_core();
      if (std::optional<Driving> now = machine_.try_lock()) taken.emplace(*std::move(now));
    }
    if (!taken) sched_yield();
  } while (!taken && !operation.done() && std::chrono::steady_clock::now() < until);
  num_would_drive_.fetch_sub(1);
  return taken;
}

bool Driver::pass(const Driving& machine) {
  transport_.wake_away(kAwayTime);
  return machine->pass(look_for_lost_.exchange(false));
}

bool Driver::gives_way(const Driving& machine) const { return num_would_drive_.load() > 0 && !machine->is_executing(); }

// Drives the engine from a caller's thread; the engine's own thread sleeps in epoll meanwhile.
void Driver::drive(const Driving& machine, const Operation& operation, TimePoint until) {
  const Doorbell& doorbell = transport_.doorbell();
  caller_drives_.store(true);
  transport_.let_thread_watch(false);
  doorbell.disarm();
  uint32_t seen = doorbell.events();
  while (!operation.done() && !machine->closed() && !machine->has_callbacks()) {
    seen = doorbell.events();
    if (pass(machine) || operation.done()) continue;
    const Duration left = until - std::chrono::steady_clock::now();
    if (left <= Duration::zero()) break;
    const Duration most = operation.waited_long ? kSpinTime : kSpinTimeOnOwnCore;  // a slow rank takes longer still
    if (spin(machine, seen, std::min(left, most), false)) continue;
    transport_.wake_away();
    sleep(machine, seen, std::min(left, machine->until_next_check().value_or(left)));
  }
  for (int i = 0; i < kLastLooks && doorbell.events() != seen && !machine->is_executing() && !machine->closed(); ++i) {
    seen = doorbell.events();
    pass(machine);
  }
  caller_drives_.store(false);
  // Most callers come again soon. Until then nothing that a peer says is worth a switch to the engine's thread.
  const bool expects = machine->expects_events();
  if (expects) {
    transport_.let_thread_watch(true);
  } else {
    transport_.wake_thread_in(kUnwatchedTime);
  }
  // Hand over: the engine's thread goes on if there is work, and is woken by the next event otherwise.
  const bool unchanged = doorbell.arm(expects ? Sleep::kEventFd : Sleep::kAway, seen);
  if (!unchanged || machine->closed() || machine->has_work(!thread_checks_stalls_)) doorbell.ring();
}

// The sleep of a caller that drives: on the futex of the doorbell, or among the sockets.
void Driver::sleep([[maybe_unused]] const Driving& machine, uint32_t seen, Duration limit) {
  const Doorbell& doorbell = transport_.doorbell();
  if (!transport_.all_local()) {
    if (doorbell.arm(Sleep::kEventFd, seen)) transport_.notice(limit);
    doorbell.disarm();
    return;
  }
  if (!thread_watches_.load()) {  // it waits for the lock that this caller holds, so nobody looks at the connections
    look_for_lost_.store(true);
    limit = std::min(limit, kWatchPeriod);
  }
  doorbell.wait_futex(seen, limit);
}

// Looks for an answer before going to sleep. Gives the core away in between: schedulers like to put ranks that wake
// each other on one core, and then the peer waits for this very core.
//
// A yield that takes long went to somebody who burns the core. Whoever sleeps instead is let in again by a wake-up at
// once, so for a while this rank does not yield, and for longer if it loses the core again soon after.
//
// A spin for peers on other hosts that was in vain shows that they are slower, or that this process does not get the
// cores it wants: for a moment, sleep is as fast.
bool Driver::spin(const Driving& machine, uint32_t seen, Duration at_most, bool yields_to_callers) {
  const bool remote = !transport_.all_local();
  const int looks = options_.core_for_each_rank ? kLooksBetweenYields : 1;
  TimePoint now = std::chrono::steady_clock::now();
  if (now < sleep_at_once_until_) return false;
  const TimePoint until = now + (remote ? kRemoteSpinTime : options_.core_for_each_rank ? at_most : kSpinTime);
  const Doorbell& doorbell = transport_.doorbell();
  do {
    for (int i = 0; i < looks; ++i) {
      if (doorbell.events() != seen) return true;
      if (yields_to_callers && gives_way(machine)) return false;
      pause_core();
    }
    if (remote && transport_.notice()) return true;
    transport_.wake_away(kAwayTime);
    const TimePoint before = std::exchange(now, yield());
    if (now - before > (remote ? kRemoteLostCoreTime : kLostCoreTime)) sleep_at_once_for_a_while(now, remote);
  } while (now < until);
  if (remote) sleep_at_once_until_ = std::max(sleep_at_once_until_, now + kSleepAfterVainSpin);
  return doorbell.events() != seen;
}

void Driver::sleep_at_once_for_a_while(TimePoint now, bool remote) {
  const bool again = now - sleep_at_once_until_ < sleep_at_once_;
  const Duration least = remote ? kMostSleepAtOnce : kLeastSleepAtOnce;
  sleep_at_once_ = again ? std::min(2 * sleep_at_once_, kMostSleepAtOnce) : least;
  sleep_at_once_until_ = now + sleep_at_once_;
}

void Driver::run() {
  // Signals belong to the threads of the program; a handler must not run here while its main thread sleeps.
  sigset_t all_signals;
  sigfillset(&all_signals);
  pthread_sigmask(SIG_BLOCK, &all_signals, nullptr);
  pthread_setname_np(pthread_self(), "hvd-engine");
  if (options_.core >= 0) bind_to_core(options_.core, job_.log);
  while (turn()) {
  }
}

bool Driver::turn() {
  if (sleeps_on_futex_) return turn_without_descriptors();
  try {
    return try_turn();
  } catch (const Error& error) {
    sleeps_on_futex_ = true;
    thread_watches_.store(false);
    const Driving machine = machine_.lock();
    machine->give_up(error);
    transport_.wake_away();
    return true;
  }
}

bool Driver::turn_without_descriptors() {
  const Doorbell& doorbell = transport_.doorbell();
  uint32_t seen = 0;
  Completion::Callbacks callbacks;
  {
    const Driving machine = machine_.lock();
    do {
      seen = doorbell.events();
    } while (!machine->closed() && !machine->has_callbacks() && pass(machine));
    transport_.wake_away();
    callbacks = machine->take_callbacks();
    if (callbacks.empty() && machine->closed()) return false;
  }
  call(callbacks);
  if (callbacks.empty()) doorbell.wait_futex(seen, kMostSleep);
  return true;
}

bool Driver::try_turn() {
  bool armed = false;
  std::optional<Duration> timeout;
  Completion::Callbacks callbacks;
  {
    const Driving machine = machine_.lock();
    const Doorbell& doorbell = transport_.doorbell();
    doorbell.disarm();
    uint32_t seen = 0;
    do {
      seen = doorbell.events();
    } while (!machine->closed() && !machine->has_callbacks() && !gives_way(machine) &&
             (pass(machine) || (num_waiters_.load() > 0 && spin(machine, seen, kSpinTimeOnOwnCore, true))));
    transport_.wake_away();
    callbacks = machine->take_callbacks();
    if (callbacks.empty()) {
      if (machine->closed()) return false;
      transport_.let_thread_watch(true);
      timeout = machine->until_next_check();
      thread_checks_stalls_ = timeout.has_value();
      if (!timeout && machine->expects_events()) timeout = kMostSleep;
      armed = doorbell.arm(Sleep::kEventFd, seen) || gives_way(machine);  // that caller looks for work, or rings
      thread_watches_.store(armed);
    }
  }
  call(callbacks);
  if (armed) sleep_in_epoll(timeout);
  return true;
}

void Driver::sleep_in_epoll(std::optional<Duration> timeout) {
  Transport::Waking waking = transport_.wait_epoll(timeout);
  while (waking == Transport::Waking::kDoorbell && caller_drives_.load()) {  // it sees that too
    waking = transport_.wait_epoll(timeout);
  }
  thread_watches_.store(false);
  if (waking == Transport::Waking::kConnection) look_for_lost_.store(true);
  transport_.doorbell().wake_caller();  // if one drives, it has to look, or to know that this thread does not
}

Locked<Machine> Driver::join() {
  thread_.join();
  return machine_.lock();
}

void Driver::leave_thread_behind() {
  if (thread_.joinable()) thread_.detach();
}

}  // namespace hvd
