#include "engine/engine.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <algorithm>
#include <numeric>

#include "backend/native/native_backend.h"
#include "engine/check.h"

namespace hvd {
namespace {

// A waiting caller looks this long for an answer before it sleeps.
constexpr Duration kSpinTime = std::chrono::microseconds(50);
constexpr Duration kGoodbyeTime = std::chrono::seconds(2);
// How often a caller that drives looks at the connections when the engine's thread cannot.
constexpr Duration kWatchPeriod = std::chrono::milliseconds(100);

int num_usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
}

void pause_core() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

Engine::Engine(TransportParts parts, EngineOptions options)
    : rank_(parts.rank),
      size_(parts.size),
      options_(std::move(options)),
      callers_drive_(parts.remote_peers.empty()),
      core_for_each_rank_(parts.num_local <= num_usable_cores()),
      transport_(std::make_unique<Transport>(std::move(parts))),
      control_(std::make_unique<ControlPlane>(*transport_)),
      backend_(std::make_unique<NativeBackend>(*transport_)),
      left_peers_(static_cast<size_t>(size_)) {
  std::vector<int> everybody(static_cast<size_t>(size_));
  std::iota(everybody.begin(), everybody.end(), 0);
  auto set = std::make_unique<ProcessSet>(0, everybody, rank_);
  if (set->is_coordinator()) {
    std::vector<std::string> names;
    for (const int member : set->members) names.push_back(name_of_rank(member));
    set->negotiator = std::make_unique<Negotiator>(
        std::move(names), NegotiatorOptions{options_.fusion_threshold, options_.cache_capacity});
  }
  memberships_.push_back({set->members, set->set_rank, {}});
  sets_.push_back(std::move(set));
  thread_ = std::thread([this] { run(); });
}

Engine::~Engine() { close("its engine was destroyed"); }

std::string Engine::name_of_rank(int rank) const {
  const auto index = static_cast<size_t>(rank);
  std::string name = "rank " + std::to_string(rank);
  if (index < options_.rank_names.size()) name += " (" + options_.rank_names[index] + ")";
  return name;
}

ProcessSet& Engine::set_of(uint32_t id) {
  if (id >= sets_.size() || sets_[id] == nullptr) {
    throw Error(ErrorKind::kInternal, "a peer speaks of process set " + std::to_string(id) + ", which is unknown here");
  }
  return *sets_[id];
}

std::optional<Error> Engine::error() const {
  const std::lock_guard lock(queue_mutex_);
  return failure_;
}

EngineStatistics Engine::statistics() const {
  return {counters_.submitted, counters_.announced_by_id, counters_.batches, counters_.fused_operations,
          counters_.passes};
}

// ---- Submission and waiting: any thread ----

void Engine::submit(const std::shared_ptr<Operation>& operation, bool waits_next) {
  const std::lock_guard lock(queue_mutex_);
  if (failure_) throw Error(failure_->kind(), operation->spec.name + " was not submitted: " + failure_->what());
  if (closing_) {
    throw Error(ErrorKind::kShutDown, operation->spec.name + " was not submitted: Horovod has been shut down here");
  }
  Membership& set = membership_of(*operation);
  operation->set_rank = set.set_rank;
  operation->waited_for = waits_next;
  check_operation(*operation, set.members);
  operation->digest = operation->spec.digest();
  if (!set.names_in_flight.insert(operation->spec.name).second) {
    throw Error(ErrorKind::kDuplicateName, operation->spec.name +
                                               " is still in flight; wait for it, or give the second operation another "
                                               "name");
  }
  queue_.push_back(operation);
  counters_.submitted.fetch_add(1, std::memory_order_relaxed);
  if (waits_next && callers_drive_) {
    transport_->doorbell().note();
  } else {
    transport_->doorbell().ring();
  }
}

Engine::Membership& Engine::membership_of(const Operation& operation) {
  if (operation.set >= memberships_.size()) {
    throw Error(ErrorKind::kUsage, operation.spec.name + ": process set " + std::to_string(operation.set) +
                                       " does not exist; it was removed or never added");
  }
  Membership& set = memberships_[operation.set];
  if (set.set_rank < 0) {
    throw Error(ErrorKind::kUsage, operation.spec.name + ": " + name_of_rank(rank_) + " is not a member of process set " +
                                       std::to_string(operation.set));
  }
  return set;
}

bool Engine::wait(Operation& operation, Duration timeout) {
  const TimePoint until = std::chrono::steady_clock::now() + timeout;
  while (!operation.done()) {
    std::unique_lock lock(drive_mutex_, std::defer_lock);
    if (callers_drive_) [[maybe_unused]] const bool locked = lock.try_lock();
    if (lock.owns_lock() && !closed_) {
      drive(operation, until);
    } else {
      if (lock.owns_lock()) lock.unlock();
      {
        const std::lock_guard queue_lock(queue_mutex_);
        if (!closing_) transport_->doorbell().ring();
      }
      num_waiters_.fetch_add(1);
      operation.wait_done(until - std::chrono::steady_clock::now());
      num_waiters_.fetch_sub(1);
    }
    if (std::chrono::steady_clock::now() >= until) break;
  }
  return operation.done();
}

// Drives the engine from a caller's thread; the engine's own thread sleeps in epoll meanwhile.
void Engine::drive(const Operation& operation, TimePoint until) {
  const Doorbell& doorbell = transport_->doorbell();
  doorbell.disarm();
  uint32_t seen = doorbell.events();
  while (!operation.done() && !closed_) {
    seen = doorbell.events();
    if (pass() || operation.done()) continue;
    const Duration left = until - std::chrono::steady_clock::now();
    if (left <= Duration::zero()) break;
    if (spin(seen)) continue;
    Duration limit = std::min(left, until_next_check().value_or(left));
    if (!thread_watches_.load()) {  // it waits for the lock that this caller holds, so nobody looks at the connections
      look_for_lost_.store(true);
      limit = std::min(limit, kWatchPeriod);
    }
    doorbell.wait_futex(seen, limit);
  }
  // Hand over: the engine's thread goes on if there is work, and is woken by the next event otherwise.
  if (!doorbell.arm(Sleep::kEventFd, seen) || closed_ || thread_has_work()) doorbell.ring();
}

bool Engine::thread_has_work() const {
  if (!active_.empty() || (!thread_checks_stalls_ && until_next_check())) return true;
  return std::any_of(sets_.begin(), sets_.end(), [](const auto& set) {
    return set != nullptr && set->negotiator != nullptr && set->negotiator->has_responses();
  });
}

// Looks for an answer before going to sleep. Gives the core away in between: schedulers like to put ranks that wake each
// other on one core, and then the peer waits for this very core.
bool Engine::spin(uint32_t seen) const {
  const int looks = core_for_each_rank_ ? 16 : 1;
  const TimePoint until = std::chrono::steady_clock::now() + kSpinTime;
  const Doorbell& doorbell = transport_->doorbell();
  do {
    for (int i = 0; i < looks; ++i) {
      if (doorbell.events() != seen) return true;
      pause_core();
    }
    sched_yield();
  } while (std::chrono::steady_clock::now() < until);
  return false;
}

// ---- The engine's thread ----

void Engine::run() {
  // Signals belong to the threads of the program; a handler must not run here while its main thread sleeps.
  sigset_t all_signals;
  sigfillset(&all_signals);
  pthread_sigmask(SIG_BLOCK, &all_signals, nullptr);
  pthread_setname_np(pthread_self(), "hvd-engine");
  while (true) {
    bool armed = false;
    std::optional<Duration> timeout;
    {
      const std::lock_guard lock(drive_mutex_);
      const Doorbell& doorbell = transport_->doorbell();
      doorbell.disarm();
      uint32_t seen = 0;
      do {
        seen = doorbell.events();
      } while (!closed_ && (pass() || (num_waiters_.load() > 0 && spin(seen))));
      if (closed_) return;
      transport_->watch_writes();
      timeout = until_next_check();
      thread_checks_stalls_ = timeout.has_value();
      armed = doorbell.arm(Sleep::kEventFd, seen);
      thread_watches_.store(armed);
    }
    if (!armed) continue;
    const bool connection_spoke = transport_->wait_epoll(timeout);
    thread_watches_.store(false);
    if (connection_spoke) look_for_lost_.store(true);
    transport_->doorbell().wake_caller();  // if one drives, it has to look, or to know that this thread does not
  }
}

std::optional<Duration> Engine::until_next_check() const {
  if (options_.stall_check_time == Duration::zero()) return std::nullopt;
  const bool pending = std::any_of(sets_.begin(), sets_.end(), [](const auto& set) {
    return set != nullptr && set->negotiator != nullptr && set->negotiator->has_pending();
  });
  if (!pending || failed_) return std::nullopt;
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
  if (is_closing()) {
    leave();
    return false;
  }
  if (failed_) {
    control_->flush();
    return false;
  }
  bool progressed = take_submissions();
  progressed = receive_messages() || progressed;
  progressed = look_for_lost_peers() || progressed;
  for (const auto& set : sets_) progressed = answer(*set) || progressed;
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

bool Engine::take_submissions() {
  std::deque<std::shared_ptr<Operation>> taken;
  {
    const std::lock_guard lock(queue_mutex_);
    taken.swap(queue_);
  }
  std::vector<std::vector<Announcement>> announcements(sets_.size());
  for (const auto& operation : taken) {
    ProcessSet& set = set_of(operation->set);
    if (set.left) {
      finish(*operation, Error(ErrorKind::kShutDown, operation->spec.name + " failed: " + *set.left));
      continue;
    }
    Announcement announcement = set.announcement_of(*operation);
    if (!announcement.full) counters_.announced_by_id.fetch_add(1, std::memory_order_relaxed);
    set.pending.emplace(operation->spec.name, operation);
    announcements[operation->set].push_back(std::move(announcement));
  }
  for (size_t id = 0; id < announcements.size(); ++id) {
    if (!announcements[id].empty()) send_announcements(*sets_[id], std::move(announcements[id]));
  }
  return !taken.empty();
}

// ---- Failure and the end ----

bool Engine::look_for_lost_peers() {
  const std::vector<int> ended = transport_->take_ended(look_for_lost_.exchange(false));
  if (ended.empty()) return false;
  receive_messages();  // a goodbye, or the first cause, came before the end of the connection
  for (const int peer : ended) {
    if (failed_) return true;
    if (left_peers_[static_cast<size_t>(peer)]) continue;
    control_->forget(peer);
    throw lost(peer);
  }
  return true;
}

Error Engine::lost(int peer) const {
  return {ErrorKind::kPeerLost, name_of_rank(peer) +
                                    " was lost: its process died or its connection broke. The output of that rank may "
                                    "tell why"};
}

void Engine::fail(const Error& error, bool tell_peers) {
  if (failed_) return;
  failed_ = true;
  std::deque<std::shared_ptr<Operation>> queued;
  {
    const std::lock_guard lock(queue_mutex_);
    failure_ = error;
    queued.swap(queue_);
  }
  const auto fail_one = [&](Operation& operation) {
    operation.fail(Error(error.kind(), operation.spec.name + " failed: " + error.what()));
  };
  for (const Active& active : active_) {
    for (const auto& operation : active.operations) fail_one(*operation);
  }
  active_.clear();
  for (const auto& set : sets_) {
    for (const auto& [name, operation] : set->pending) fail_one(*operation);
    set->pending.clear();
  }
  for (const auto& operation : queued) fail_one(*operation);
  if (!tell_peers) return;
  Message message;
  message.kind = MessageKind::kAbort;
  message.error_kind = error.kind();
  message.text = error.what();
  for (int peer = 0; peer < size_; ++peer) {
    if (transport_->has(peer)) control_->send(peer, message);
  }
}

void Engine::check_stalls() {
  if (options_.stall_check_time == Duration::zero()) return;
  const TimePoint now = options_.clock->now();
  if (now < next_stall_check_) return;
  next_stall_check_ = now + std::clamp<Duration>(options_.stall_check_time / 4, std::chrono::milliseconds(10),
                                                 std::chrono::seconds(10));
  for (const auto& set : sets_) {
    if (set->negotiator == nullptr) continue;
    if (const auto report = set->negotiator->report_stalled(now, options_.stall_check_time)) {
      options_.log(LogLevel::kWarning, *report);
    }
    if (options_.stall_shutdown_time == Duration::zero()) continue;
    if (const auto report = set->negotiator->report_stalled(now, options_.stall_shutdown_time, true)) {
      throw Error(ErrorKind::kStalled, *report);
    }
  }
}

// Says goodbye and fails what is pending. The last thing that the engine does.
void Engine::leave() {
  std::string reason;
  {
    const std::lock_guard lock(queue_mutex_);
    reason = *closing_;
  }
  const bool data_matter = !failed_;  // peers that failed too do not read them any more
  fail(Error(ErrorKind::kShutDown, "Horovod has been shut down on this rank (" + reason + ")"), false);
  Message message;
  message.kind = MessageKind::kBye;
  message.text = reason;
  for (int peer = 0; peer < size_; ++peer) {
    if (transport_->has(peer)) control_->send(peer, message);
  }
  const TimePoint until = std::chrono::steady_clock::now() + kGoodbyeTime;
  const Doorbell& doorbell = transport_->doorbell();
  while (true) {
    const uint32_t seen = doorbell.events();
    const bool data_sent = transport_->flush();
    const bool sent = control_->flush() && (data_sent || !data_matter);
    const Duration left = until - std::chrono::steady_clock::now();
    if (sent || left <= Duration::zero()) break;
    transport_->watch_writes();
    if (doorbell.arm(Sleep::kEventFd, seen)) transport_->wait_epoll(left);
  }
  closed_ = true;
}

// Takes no lock: a thread of the parent may have held it at the fork, and will never release it here.
void Engine::abandon() {
  thread_.detach();
  transport_->abandon();
}

void Engine::close(const std::string& reason) {
  const std::lock_guard close_lock(close_mutex_);
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(queue_mutex_);
    closing_ = reason;
    transport_->doorbell().ring();
  }
  thread_.join();
  const std::lock_guard drive_lock(drive_mutex_);
  const std::lock_guard lock(queue_mutex_);
  backend_.reset();
  control_.reset();
  transport_.reset();
}

}  // namespace hvd
