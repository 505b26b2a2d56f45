#include "engine/engine.h"

#include <sched.h>

#include <numeric>

#include "backend/mpi/mpi_backend.h"
#include "backend/native/native_backend.h"
#include "engine/check.h"

namespace hvd {
namespace {

// The cores that this process may run on.
int num_cores_of_process() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
}
}  // namespace

Engine::Engine(TransportParts parts, EngineOptions options)
    : rank_(parts.rank),
      size_(parts.size),
      options_(std::move(options)),
      all_local_(parts.remote_peers.empty()),
      core_for_each_rank_(parts.num_local <= (options_.num_cores > 0 ? options_.num_cores : num_cores_of_process())),
      nccl_finder_(options_.gpu ? std::make_shared<NcclFinder>(options_.gpu->nccl_candidates,
                                                               options_.gpu->operations != GpuOperations::kStaged)
                                : nullptr),
      devices_(options_.gpu ? std::make_unique<Devices>(options_.gpu->driver_candidates) : nullptr),
      transport_(std::make_unique<Transport>(std::move(parts))),
      control_(std::make_unique<ControlPlane>(*transport_)),
      backend_(make_backend()),
      gpu_backend_(make_gpu_backend()),
      left_peers_(static_cast<size_t>(size_)),
      position_(options_.stack_dump) {
  std::vector<int> everybody(static_cast<size_t>(size_));
  std::iota(everybody.begin(), everybody.end(), 0);
  make_process_set(0, std::move(everybody));
  std::vector<bool> is_remote;
  for (int peer = 0; peer < size_; ++peer) is_remote.push_back(peer != rank_ && !transport_->is_local(peer));
  const auto send = [this](int peer, const Message& message) { control_->send(peer, message); };
  timeline_ = std::make_unique<TimelineSession>(rank_, std::move(is_remote), send, options_.log);
  if (options_.autotune && rank_ == 0 && size_ > 1) autotuner_ = std::make_unique<Autotuner>(*options_.autotune);
  thread_ = std::thread([this] { run(); });
}

Engine::~Engine() { close("its engine was destroyed"); }

std::unique_ptr<Backend> Engine::make_backend() {
  if (options_.mpi == nullptr) {
    return std::make_unique<NativeBackend>(*transport_, options_.deterministic, options_.plans);
  }
  return std::make_unique<MpiBackend>(options_.mpi, [this] { transport_->doorbell().ring(); });
}

std::string Engine::name_of_rank(int rank) const {
  const auto index = static_cast<size_t>(rank);
  std::string name = "rank " + std::to_string(rank);
  if (index < options_.rank_names.size()) name += " (" + options_.rank_names[index] + ")";
  return name;
}

ProcessSet& Engine::set_of(uint32_t id) {
  const auto found = sets_.find(id);
  if (found == sets_.end()) {
    throw Error(ErrorKind::kInternal, "a peer speaks of process set " + std::to_string(id) + ", which is unknown here");
  }
  return *found->second;
}

std::optional<Error> Engine::error() const {
  const std::lock_guard lock(queue_mutex_);
  return failure_;
}

EngineStatistics Engine::statistics() const {
  return {counters_.submitted, counters_.announced_by_id, counters_.batches,     counters_.fused_operations,
          counters_.passes,    counters_.direct_batches,  counters_.gpu_batches, counters_.nccl_batches};
}

// What the ranks are to agree on. The tensors are added when they have been checked.
void Engine::describe(Operation& operation) {
  SubmitRequest& request = operation.request;
  RequestSpec& spec = operation.spec;
  spec.kind = request.kind;
  spec.reduce_op = request.reduce_op;
  spec.prescale = request.prescale;
  spec.postscale = request.postscale;
  spec.root = request.root;
  spec.weighted = request.weight.has_value();
  spec.ranks = request.ranks;
  spec.divide_by_initial_world_size = request.divide_by_initial_world_size;
  if (request.name) {
    spec.name = request.prefix.empty() ? *request.name : request.prefix + "." + *request.name;
    return;
  }
  spec.name = (request.prefix.empty() ? name_of(request.kind) : request.prefix) + std::string(".noname");
  // There is one barrier, and one join, of a process set at a time, so that they have one name.
  if (request.kind == OpKind::kBarrier || request.kind == OpKind::kJoin) return;
  spec.cacheable = false;
  spec.unnamed = next_number(request.process_set);
  spec.name += "." + std::to_string(spec.unnamed);
}

void Engine::submit(const std::shared_ptr<Operation>& operation) {
  describe(*operation);
  if (abandoned_) {
    throw Error(ErrorKind::kShutDown, operation->spec.name + " was not submitted: this process is a fork of a rank");
  }
  prepare_device(*operation);
  const std::lock_guard lock(queue_mutex_);
  refuse_if_ended(*operation);
  check_submission(*operation, membership_of(*operation));
  operation->state.submitted = options_.clock->now();
  last_submitted_.name = operation->spec.name;
  last_submitted_.call_site = operation->request.call_site;
  last_submitted_.time = operation->state.submitted;
  const uint64_t thread = pthread_self();
  if (std::exchange(last_submitter_, thread) != thread) submitters_.insert(thread);
  queue_.push_back(operation);
  counters_.submitted.fetch_add(1, std::memory_order_relaxed);
  if (operation->request.waits_next) {
    transport_->doorbell().note();
  } else {
    transport_->doorbell().ring();
  }
}

// With queue_mutex_ held.
void Engine::refuse_if_ended(const Operation& operation) const {
  if (failure_) throw Error(failure_->kind(), operation.spec.name + " was not submitted: " + failure_->what());
  if (!closing_) return;
  throw Error(ErrorKind::kShutDown, operation.spec.name + " was not submitted: Horovod has been shut down here");
}

// Ranks that had joined have not counted what the others did meanwhile, so all count anew after a join.
uint64_t Engine::next_number(uint32_t set) {
  if (abandoned_) return 1;  // the lock may be held for ever; submit() refuses
  const std::lock_guard lock(queue_mutex_);
  const auto found = memberships_.find(set);
  if (found == memberships_.end()) return 1;
  return found->second.num_joins << 32 | ++found->second.num_unnamed;
}

// With queue_mutex_ held, as the next one.
Engine::Membership& Engine::membership_of(const Operation& operation) {
  const auto found = memberships_.find(operation.request.process_set);
  if (found == memberships_.end() || found->second.closing) {
    throw Error(ErrorKind::kUsage, operation.spec.name + ": its process set does not exist; it was removed");
  }
  if (found->second.set_rank < 0) {
    std::string members;
    for (const int member : found->second.members) members += (members.empty() ? "" : ", ") + std::to_string(member);
    throw Error(ErrorKind::kUsage, operation.spec.name + ": " + name_of_rank(rank_) +
                                       " is not a member of the process set of ranks " + members);
  }
  return found->second;
}

void Engine::check_submission(Operation& operation, Membership& set) {
  operation.state.set_rank = set.set_rank;
  check_operation(operation, set.members);
  operation.state.digest = operation.spec.digest();
  if (const auto first = set.names_in_flight.find(operation.spec.name); first != set.names_in_flight.end()) {
    throw Error(ErrorKind::kDuplicateName, operation.spec.name + " is still in flight" +
                                               (first->second.empty() ? "" : ", submitted at " + first->second) +
                                               "; wait for it, or give the second operation another name");
  }
  if (operation.spec.kind == OpKind::kShareMemory) check_shared_memory(operation);
  const bool changes_sets =
      operation.spec.kind == OpKind::kAddProcessSet || operation.spec.kind == OpKind::kRemoveProcessSet;
  if (changes_sets && operation.request.process_set != 0) {
    throw Error(ErrorKind::kUsage, operation.spec.name + ": process sets are changed by all ranks of the job");
  }
  if (operation.spec.kind == OpKind::kAddProcessSet) check_new_process_set(operation);
  if (operation.spec.kind == OpKind::kRemoveProcessSet) check_removal(operation);
  set.names_in_flight.emplace(operation.spec.name, operation.request.call_site);
}

void Engine::wake() {
  if (abandoned_) return;
  const std::lock_guard lock(queue_mutex_);
  if (transport_ != nullptr) transport_->doorbell().ring();  // also while closing: the thread may rely on it
}

bool Engine::wait(Operation& operation, Duration timeout) {
  const bool done = wait_once(operation, timeout);
  if (!done) operation.waited_long.store(true, std::memory_order_relaxed);
  return done;
}

bool Engine::wait_once(Operation& operation, Duration timeout) {
  const TimePoint until = std::chrono::steady_clock::now() + timeout;
  while (!operation.done()) {
    std::unique_lock lock(drive_mutex_, std::defer_lock);
    if (take_drive(lock, operation) && !closed_) {
      drive(operation, until);
      const auto callbacks = std::exchange(callbacks_, {});
      lock.unlock();
      call(callbacks);
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
  if (taken.empty() && removals_.empty()) return false;
  const size_t num_removals = removals_.size();
  std::map<uint32_t, std::vector<Announcement>> announcements;
  for (const auto& operation : std::exchange(removals_, {})) announce_submission(operation, announcements);
  const bool removes = removals_.size() < num_removals;
  for (const auto& operation : taken) announce_submission(operation, announcements);
  for (auto& [id, list] : announcements) send_announcements(*sets_.at(id), std::move(list));
  return !taken.empty() || removes;
}

void Engine::announce_submission(const std::shared_ptr<Operation>& operation,
                                 std::map<uint32_t, std::vector<Announcement>>& announcements) {
  if (operation->spec.kind == OpKind::kRemoveProcessSet && !may_announce_removal(*operation)) {
    removals_.push_back(operation);
    return;
  }
  ProcessSet& set = set_of(operation->request.process_set);
  if (set.left) {
    finish(*operation, Error(ErrorKind::kShutDown, operation->spec.name + " failed: " + *set.left));
    return;
  }
  find_place(*operation);
  Announcement announcement = set.announcement_of(*operation);
  if (!announcement.full) counters_.announced_by_id.fetch_add(1, std::memory_order_relaxed);
  record_submission(*operation);
  set.pending.emplace(operation->spec.name, operation);
  announcements[operation->request.process_set].push_back(std::move(announcement));
}

// Takes no lock: a thread of the parent may have held it at the fork, and will never release it here.
void Engine::abandon() {
  if (abandoned_.exchange(true)) return;
  if (thread_.joinable()) thread_.detach();
  if (transport_ != nullptr) transport_->abandon();
  timeline_->abandon();
}

void Engine::close(const std::string& reason) {
  if (abandoned_) return;
  position_.close();
  const std::lock_guard close_lock(close_mutex_);
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(queue_mutex_);
    closing_ = reason;
    transport_->doorbell().ring();
  }
  thread_.join();
  const std::lock_guard drive_lock(drive_mutex_);
  if (const auto writer = timeline_->take_writer()) writer->close();
  const std::lock_guard lock(queue_mutex_);
  gpu_backend_.reset();
  backend_.reset();
  control_.reset();
  transport_.reset();
}

}  // namespace hvd
