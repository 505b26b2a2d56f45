#include "engine/execution/executions.h"

#include <algorithm>

#include "engine/devices/stand_in.h"
#include "engine/submission/check.h"

namespace hvd {
namespace {

// Batches in flight for a set: one on its way while the next starts. What becomes ready meanwhile is fused.
constexpr size_t kMostBatchesInFlight = 2;

// What devices are at work on when the engine is closed may take this long: callers have been told that it is ordered
// behind what they do next. The loss of a rank ends the wait before.
constexpr Duration kDeviceEndTime = std::chrono::seconds(30);
// What all ranks take part in needs no caller any more. Only a rank that does not go on makes it take longer.
constexpr Duration kHostEndTime = std::chrono::seconds(2);

// What is executed together has one kind and one way to be reduced.
void check_alike(const std::vector<std::shared_ptr<Operation>>& operations) {
  const RequestSpec& first = operations.front()->spec;
  for (const auto& operation : operations) {
    const RequestSpec& spec = operation->spec;
    if (spec.kind == first.kind && spec.reduce_op == first.reduce_op && spec.weighted == first.weighted) continue;
    throw Error(ErrorKind::kInternal, "the coordinator ordered " + first.name + " and " + spec.name +
                                          " to be executed together, which are operations of different kinds");
  }
}

}  // namespace

Executions::Executions(Neighbors neighbors, Backends backends, Tuning& tuning)
    : with_(neighbors),
      backends_(std::move(backends)),
      tuning_(tuning),
      shared_arrays_(with_.job, with_.transport, backends_.cpu->reduces_in_shared_memory()) {}

void Executions::add_process_set(uint32_t id, const std::vector<int>& members) {
  backends_.cpu->add_process_set(id, members);
}

void Executions::remove_process_set(uint32_t id) {
  backends_.cpu->remove_process_set(id);
  if (backends_.gpu != nullptr) backends_.gpu->remove_process_set(id);
}

void Executions::execute(SetMembers& set, const Operations& operations, const Response& response) {
  if (operations.empty()) throw Error(ErrorKind::kInternal, "the coordinator ordered an execution of nothing");
  check_alike(operations);
  // All members reduce in the same way, with the factors of the first.
  if (response.num_averaged < 1 ||
      (operations.front()->spec.weighted && !is_total_weight(response.names.front().total_weight))) {
    throw Error(ErrorKind::kInternal, "the coordinator ordered an average over nothing");
  }
  for (const auto& operation : operations) {
    if (operation->has_no_weight()) withhold_values(*operation, with_.devices.device_of(*operation));
  }
  if (response.direct) with_.counters.direct_batches.fetch_add(1, std::memory_order_relaxed);
  if (operations.size() > 1) {
    with_.counters.fused_operations.fetch_add(operations.size(), std::memory_order_relaxed);
  }
  const std::shared_ptr<Operation>& first = operations.front();
  switch (collective_of(first->spec.kind, first->spec.reduce_op)) {
    case Collective::kAllreduce:
    case Collective::kAdasum:
    case Collective::kBroadcast:
      start_fused(set, operations, response);
      break;
    case Collective::kAllgather:
      start_allgather(set, first, response);
      break;
    case Collective::kAlltoall:
      start_alltoall(set, first, response);
      break;
    case Collective::kReducescatter:
      start_reducescatter(set, first, response);
      break;
  }
}

void Executions::start(SetMembers& set, std::unique_ptr<Execution> execution, Operations operations) {
  with_.counters.batches.fetch_add(1, std::memory_order_relaxed);
  for (const auto& operation : operations) {
    ++operation->state.executions_left;
    ++operation->state.executions_unended;
  }
  if (active_.empty()) last_progress_ = with_.job.clock->now();
  Active added{.set = &set,
               .execution = std::move(execution),
               .operations = std::move(operations),
               .started = std::chrono::steady_clock::now()};
  for (const auto& operation : added.operations) added.bytes += operation->spec.total_bytes();
  added.priority = added.operations.front()->state.priority;
  const auto place =
      std::find_if(active_.begin(), active_.end(), [&](const Active& other) { return added.goes_before(other); });
  with_.observer.record_execution(active_.insert(place, std::move(added))->operations, true);
}

Room Executions::room_of(const SetMembers& set) const {
  std::vector<int32_t> priorities;  // falling, as active_ is
  size_t num_small = 0;
  for (const Active& active : active_) {
    if (active.set != &set || active.handed_over) continue;                     // a stream takes as many as there are
    if (traits_of(active.operations.front()->spec.kind).is_transfer) continue;  // most members do not take part
    priorities.push_back(active.priority);
    if (active.bytes <= kSmallBatchBytes) ++num_small;
  }
  Room room;
  room.any = priorities.size() < kMostBatchesInFlight;
  room.small = num_small < kMostBatchesInFlight;
  if (!room.any) room.priority = priorities[kMostBatchesInFlight - 1];
  return room;
}

bool Executions::uses(uint32_t set) const {
  return std::any_of(active_.begin(), active_.end(), [set](const Active& active) { return active.set->id == set; });
}

bool Executions::has_work() const {
  return std::any_of(active_.begin(), active_.end(), [](const Active& active) { return !active.handed_over; });
}

bool Executions::advance() {
  if (active_.empty()) return false;
  bool progressed = with_.transport.poll_data();
  for (size_t i = 0; i < active_.size();) {
    Active& active = active_[i];
    progressed = active.execution->advance() || progressed;
    if (!active.handed_over && active.execution->handed_over()) {
      progressed = true;
      hand_over(active);
    }
    if (!active.execution->done()) {
      ++i;
      continue;
    }
    progressed = true;
    end(active);
    active_.erase(active_.begin() + static_cast<std::ptrdiff_t>(i));
  }
  if (!ended_transfers_.empty()) start_waiting_transfers();
  if (progressed || with_.transport.set_aside()) {
    last_progress_ = with_.job.clock->now();
    ++num_advances_;
    return true;
  }
  return false;
}

// Callers may go on. On the CPU that is when all is done.
void Executions::hand_over(Active& active) {
  active.handed_over = true;
  if (backends_.gpu != nullptr) with_.counters.nccl_batches.store(backends_.num_nccl_batches());
  with_.observer.record_execution(active.operations, false);
  if (active.operations.front()->spec.on_gpu)
    with_.observer.record_device(active.operations, active.execution.get(), true);
  const device::SharedEvent finished = active.execution->finished();
  for (const auto& operation : active.operations) {
    if (finished != nullptr) {
      operation->gpu.finished.push_back(finished);
      const bool owns_memory = !operation->result.arrays.empty() || !operation->state.scratch.empty();
      if (owns_memory) with_.devices.device_of(*operation)->await({finished});
      for (OwnedArray& result : operation->result.arrays) result.written.push_back(finished);
    }
    if (--operation->state.executions_left == 0) with_.completion.finish(*operation);
  }
}

// With all memory free again. An operation may have been failed by its coordinator's farewell meanwhile.
void Executions::end(const Active& active) {
  if (active.operations.front()->spec.on_gpu)
    with_.observer.record_device(active.operations, active.execution.get(), false);
  tuning_.note_batch(active.set->id, active.operations, active.started);
  if (traits_of(active.operations.front()->spec.kind).is_transfer) end_transfer(active);
  for (const auto& operation : active.operations) {
    if (--operation->state.executions_unended > 0) continue;
    operation->gpu.settle();
    if (operation->done()) operation->request.keeper.reset();
  }
}

// Nothing can go on: an execution may wait for a rank that will never send or read again.
std::optional<int> Executions::missing_peer() const {
  for (const Active& active : active_) {
    for (int peer = 0; peer < with_.job.size; ++peer) {
      const auto& end = with_.control.end_of(peer);
      const bool gone = end ? !with_.transport.data_may_follow(peer) : with_.transport.data_ended(peer);
      if (!gone || !active.execution->gives_up_on(peer)) continue;
      if (!end) return peer;
      throw Error(ErrorKind::kShutDown, *end + "; it left in the middle of " + active.operations.front()->spec.name);
    }
  }
  return std::nullopt;
}

void Executions::fail(const Error& error) {
  for (const Active& active : active_) {
    for (const auto& operation : active.operations) shared_arrays_.detach(*operation);
  }
  if (error.kind() != ErrorKind::kShutDown) backends_.cpu->give_up(error.what());
  give_up_on_devices(error);
  for (Active& active : active_) {
    active.execution.reset();  // callers may free their memory as soon as they know
    for (const auto& operation : active.operations) with_.completion.fail(*operation, error);
  }
  active_.clear();
  fail_waiting_transfers(error);
}

// Kernels are aborted, as far as that is possible. What may still be written to is not freed. An engine that ends well
// lets communicators end in good order.
void Executions::give_up_on_devices(const Error& error) {
  if (backends_.gpu == nullptr) return;
  const bool busy = std::any_of(active_.begin(), active_.end(), [](const Active& active) {
    return active.operations.front()->spec.on_gpu && !active.execution->done();
  });
  if (busy || error.kind() != ErrorKind::kShutDown) backends_.gpu->give_up(error.what());
  for (const Active& active : active_) {
    if (!active.operations.front()->spec.on_gpu) continue;
    const bool known_end = active.handed_over || !active.execution->may_be_on_device();
    for (const auto& operation : active.operations) {
      operation->gpu.settle_with(Error(error.kind(), operation->spec.name + " failed: " + error.what()), known_end);
      const bool owns_memory =
          !operation->result.arrays.empty() || !operation->state.scratch.empty() || operation->request.keeper;
      if (!owns_memory) continue;
      if (known_end) {
        left_to_devices_.push_back(operation);
      } else {
        keep_for_ever(operation);
      }
    }
  }
}

void Executions::look_for_ended_devices(bool all) {
  std::erase_if(left_to_devices_, [](const std::shared_ptr<Operation>& operation) {
    if (!operation->settled()) return false;
    operation->request.keeper.reset();
    return true;
  });
  if (all) left_to_devices_.clear();
}

bool Executions::last_have_ended() {
  bool on_devices = false;
  bool on_hosts = false;
  for (const Active& active : active_) {
    on_devices = on_devices || active.handed_over;
    on_hosts = on_hosts || !traits_of(active.operations.front()->spec.kind).is_transfer;  // which need another caller
  }
  if (!on_devices && !on_hosts) return true;
  const TimePoint now = std::chrono::steady_clock::now();
  if (!last_awaited_) last_awaited_ = now;
  return now - *last_awaited_ >= (on_devices ? kDeviceEndTime : kHostEndTime);
}

}  // namespace hvd
