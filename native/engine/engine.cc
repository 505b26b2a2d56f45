#include "engine/engine.h"

#include <sched.h>

#include <algorithm>
#include <numeric>

#include "backend/native/native_backend.h"
#include "engine/check.h"

namespace hvd {
namespace {

int num_usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
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

void Engine::submit(const std::shared_ptr<Operation>& operation, bool waits_next) {
  if (abandoned_) {
    throw Error(ErrorKind::kShutDown, operation->spec.name + " was not submitted: this process is a fork of a rank");
  }
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
    throw Error(ErrorKind::kUsage, operation.spec.name + ": " + name_of_rank(rank_) +
                                       " is not a member of process set " + std::to_string(operation.set));
  }
  return set;
}

void Engine::wake() {
  if (abandoned_) return;
  const std::lock_guard lock(queue_mutex_);
  if (!closing_) transport_->doorbell().ring();
}

bool Engine::wait(Operation& operation, Duration timeout) {
  const TimePoint until = std::chrono::steady_clock::now() + timeout;
  while (!operation.done()) {
    std::unique_lock lock(drive_mutex_, std::defer_lock);
    if (callers_drive_) [[maybe_unused]]
      const bool locked = lock.try_lock();
    if (lock.owns_lock() && !closed_) {
      drive(operation, until);
    } else {
      if (lock.owns_lock()) lock.unlock();
      wake();
      num_waiters_.fetch_add(1);
      operation.wait_done(until - std::chrono::steady_clock::now());
      num_waiters_.fetch_sub(1);
    }
    if (std::chrono::steady_clock::now() >= until) break;
  }
  return operation.done();
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

// Takes no lock: a thread of the parent may have held it at the fork, and will never release it here.
void Engine::abandon() {
  if (abandoned_.exchange(true)) return;
  if (thread_.joinable()) thread_.detach();
  if (transport_ != nullptr) transport_->abandon();
}

void Engine::close(const std::string& reason) {
  if (abandoned_) return;
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
