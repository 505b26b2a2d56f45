// Who makes the engine go on, and when it sleeps: the engine's thread, or a caller that waits.
#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <algorithm>

#include "engine/engine.h"

namespace hvd {
namespace {

// A waiting caller looks this long for an answer before it sleeps.
constexpr Duration kSpinTime = std::chrono::microseconds(50);
// So much longer if each rank of this host has a core: one that falls asleep for a moment offers its core to the
// threads of other ranks, which then wait for each other there while another core is idle (docs/decisions/0029).
constexpr Duration kSpinTimeOnOwnCore = std::chrono::milliseconds(2);
// And this long for the engine's thread to let it drive.
constexpr Duration kTakeOverTime = std::chrono::microseconds(20);
// A yield to another rank is back sooner than this.
constexpr Duration kLostCoreTime = std::chrono::microseconds(1500);
constexpr Duration kSleepAtOncePeriod = std::chrono::milliseconds(200);
// Peers on other hosts take longer: as long as two that sleep need to wake each other. Else ranks that once began to
// sleep would go on so.
constexpr Duration kRemoteSpinTime = std::chrono::microseconds(200);
constexpr Duration kRemoteLostCoreTime = std::chrono::microseconds(250);
constexpr Duration kSleepAfterVainSpin = std::chrono::milliseconds(2);
// How often a caller that drives looks at the connections when the engine's thread cannot.
constexpr Duration kWatchPeriod = std::chrono::milliseconds(100);
// How long peers on other hosts may have to wait for attention when a caller that drove is done, and nobody drives.
constexpr Duration kUnwatchedTime = std::chrono::microseconds(500);
// How often to look whether an answer to "where are you?" is there, or a device has ended.
constexpr Duration kInquiryPeriod = std::chrono::milliseconds(20);

void pause_core() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

void bind_to_core(int core, const LogSink& log) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(static_cast<size_t>(core), &cores);
  if (pthread_setaffinity_np(pthread_self(), sizeof(cores), &cores) == 0) return;
  log(LogLevel::kWarning, "the engine's thread cannot be bound to core " + std::to_string(core) +
                              ": this process may not use it, or it does not exist");
}

}  // namespace

// A caller that comes while the engine's thread has nothing to execute takes over: else the thread, which spins for
// the waiting caller, would keep the drive from one short operation to the next, at the cost of two switches for each.
bool Engine::take_drive(std::unique_lock<std::mutex>& lock, const Operation& operation) {
  if (lock.try_lock()) return true;
  num_would_drive_.fetch_add(1);
  const TimePoint until = std::chrono::steady_clock::now() + kTakeOverTime;
  bool locked = false;
  do {
    for (int i = 0; i < 16 && !locked; ++i) {
      pause_core();
      locked = lock.try_lock();
    }
    if (!locked) sched_yield();
  } while (!locked && !operation.done() && std::chrono::steady_clock::now() < until);
  num_would_drive_.fetch_sub(1);
  return locked;
}

bool Engine::gives_way() const { return num_would_drive_.load() > 0 && active_.empty(); }

// Drives the engine from a caller's thread; the engine's own thread sleeps in epoll meanwhile.
void Engine::drive(const Operation& operation, TimePoint until) {
  const Doorbell& doorbell = transport_->doorbell();
  caller_drives_.store(true);
  transport_->let_thread_watch(false);
  doorbell.disarm();
  uint32_t seen = doorbell.events();
  while (!operation.done() && !closed_ && callbacks_.empty()) {
    seen = doorbell.events();
    if (pass() || operation.done()) continue;
    const Duration left = until - std::chrono::steady_clock::now();
    if (left <= Duration::zero()) break;
    const Duration most = operation.waited_long ? kSpinTime : kSpinTimeOnOwnCore;  // a slow rank takes longer still
    if (spin(seen, std::min(left, most), false)) continue;
    sleep(seen, std::min(left, until_next_check().value_or(left)));
  }
  caller_drives_.store(false);
  // Most callers come again soon. Until then nothing that a peer says is worth a switch to the engine's thread.
  if (expects_events()) {
    transport_->let_thread_watch(true);
  } else {
    transport_->wake_thread_in(kUnwatchedTime);
  }
  // Hand over: the engine's thread goes on if there is work, and is woken by the next event otherwise.
  if (!doorbell.arm(Sleep::kEventFd, seen) || closed_ || thread_has_work()) doorbell.ring();
}

// Without a lock, so that a callback may submit.
void Engine::call(const std::vector<std::function<void()>>& callbacks) {
  for (const auto& callback : callbacks) callback();
}

bool Engine::expects_events() {
  const bool sent = control_->flush() && transport_->flush();
  return !sent || failed_ || closed_ || !active_.empty() ||
         std::any_of(sets_.begin(), sets_.end(), [](const auto& entry) { return !entry.second->pending.empty(); });
}

// The sleep of a caller that drives: on the futex of the doorbell, or among the sockets.
void Engine::sleep(uint32_t seen, Duration limit) {
  const Doorbell& doorbell = transport_->doorbell();
  if (!transport_->all_local()) {
    if (doorbell.arm(Sleep::kEventFd, seen)) transport_->notice(limit);
    doorbell.disarm();
    return;
  }
  if (!thread_watches_.load()) {  // it waits for the lock that this caller holds, so nobody looks at the connections
    look_for_lost_.store(true);
    limit = std::min(limit, kWatchPeriod);
  }
  doorbell.wait_futex(seen, limit);
}

// What is left to a device rings when it goes on.
bool Engine::thread_has_work() const {
  const bool executes =
      std::any_of(active_.begin(), active_.end(), [](const Active& active) { return !active.handed_over; });
  if (executes || (!thread_checks_stalls_ && until_next_check())) return true;
  return std::any_of(sets_.begin(), sets_.end(), [](const auto& entry) {
    return entry.second->negotiator != nullptr && entry.second->negotiator->has_responses();
  });
}

// Looks for an answer before going to sleep. Gives the core away in between: schedulers like to put ranks that wake
// each other on one core, and then the peer waits for this very core.
//
// A yield that takes long went to somebody who burns the core. Whoever sleeps instead is let in again by a wake-up at
// once, so for a while this rank does not yield.
//
// A spin for peers on other hosts that was in vain shows that they are slower, or that this process does not get the
// cores it wants: for a moment, sleep is as fast.
bool Engine::spin(uint32_t seen, Duration at_most, bool gives_way_to_callers) {
  const bool remote = !transport_->all_local();
  const int looks = core_for_each_rank_ ? 16 : 1;
  TimePoint now = std::chrono::steady_clock::now();
  if (now < sleep_at_once_until_) return false;
  const TimePoint until = now + (remote ? kRemoteSpinTime : core_for_each_rank_ ? at_most : kSpinTime);
  const Doorbell& doorbell = transport_->doorbell();
  do {
    for (int i = 0; i < looks; ++i) {
      if (doorbell.events() != seen) return true;
      pause_core();
    }
    if (remote && transport_->notice()) return true;
    if (gives_way_to_callers && gives_way()) return false;
    const TimePoint before = std::chrono::steady_clock::now();
    sched_yield();
    now = std::chrono::steady_clock::now();
    if (now - before > (remote ? kRemoteLostCoreTime : kLostCoreTime)) sleep_at_once_until_ = now + kSleepAtOncePeriod;
  } while (now < until);
  if (remote) sleep_at_once_until_ = std::max(sleep_at_once_until_, now + kSleepAfterVainSpin);
  return doorbell.events() != seen;
}

void Engine::run() {
  // Signals belong to the threads of the program; a handler must not run here while its main thread sleeps.
  sigset_t all_signals;
  sigfillset(&all_signals);
  pthread_sigmask(SIG_BLOCK, &all_signals, nullptr);
  pthread_setname_np(pthread_self(), "hvd-engine");
  if (options_.core >= 0) bind_to_core(options_.core, options_.log);
  while (true) {
    bool armed = false;
    std::optional<Duration> timeout;
    std::vector<std::function<void()>> callbacks;
    {
      const std::lock_guard lock(drive_mutex_);
      const Doorbell& doorbell = transport_->doorbell();
      doorbell.disarm();
      uint32_t seen = 0;
      do {
        seen = doorbell.events();
      } while (!closed_ && callbacks_.empty() && !gives_way() &&
               (pass() || (num_waiters_.load() > 0 && spin(seen, kSpinTimeOnOwnCore, true))));
      callbacks.swap(callbacks_);
      if (callbacks.empty()) {
        if (closed_) return;
        transport_->let_thread_watch(true);
        timeout = until_next_check();
        thread_checks_stalls_ = timeout.has_value();
        armed = doorbell.arm(Sleep::kEventFd, seen) || gives_way();  // that caller looks for work, or rings
        thread_watches_.store(armed);
      }
    }
    call(callbacks);
    if (!armed) continue;
    Transport::Waking waking = transport_->wait_epoll(timeout);
    while (waking == Transport::Waking::kDoorbell && caller_drives_.load()) {  // it sees that too
      waking = transport_->wait_epoll(timeout);
    }
    thread_watches_.store(false);
    if (waking == Transport::Waking::kConnection) look_for_lost_.store(true);
    transport_->doorbell().wake_caller();  // if one drives, it has to look, or to know that this thread does not
  }
}

std::optional<Duration> Engine::until_next_check() const {
  if (failed_) return left_to_devices_.empty() ? std::nullopt : std::optional(kInquiryPeriod);
  if (inquiry_ || !inquirers_.empty() || devices_awaited_) return kInquiryPeriod;
  const std::optional<Duration> flush = timeline_->until_flush(std::chrono::steady_clock::now());
  const std::optional<Duration> check = until_stall_check();
  return flush && check ? std::min(*flush, *check) : (flush ? flush : check);
}

std::optional<Duration> Engine::until_stall_check() const {
  if (!watches_stalls()) return std::nullopt;
  const bool pending = !active_.empty() || std::any_of(sets_.begin(), sets_.end(), [](const auto& entry) {
    const ProcessSet& set = *entry.second;
    return !set.pending.empty() || (set.negotiator != nullptr && set.negotiator->has_pending());
  });
  if (!pending) return std::nullopt;
  return std::max(next_stall_check_ - options_.clock->now(), Duration::zero());
}

bool Engine::pass() {
  counters_.passes.fetch_add(1, std::memory_order_relaxed);
  try {
    return pass_or_throw();
  } catch (const Error& error) {
    fail(error, true);
  } catch (const std::exception& error) {
    fail(Error(ErrorKind::kInternal, name_of_rank(rank_) + " failed: " + error.what()), true);
  }
  return true;
}

bool Engine::pass_or_throw() {
  if (!transport_->all_local()) transport_->notice();
  if (transport_->take_liveness_event()) look_for_lost_.store(true);
  if (is_closing() && (failed_ || (timeline_has_ended() && devices_have_ended()))) {
    leave();
    return false;
  }
  if (failed_) {
    look_for_ended_devices();
    control_->flush();
    return false;
  }
  bool progressed = take_submissions();
  progressed = receive_messages() || progressed;
  progressed = look_for_lost_peers() || progressed;
  progressed = answer_all() || progressed;
  follow_timeline_commands();
  progressed = advance_executions() || progressed;
  control_->flush();
  transport_->flush();
  check_stalls();
  return progressed;
}

bool Engine::is_closing() const {
  const std::lock_guard lock(queue_mutex_);
  return closing_.has_value();
}

}  // namespace hvd
