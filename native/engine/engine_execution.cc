#include <algorithm>
#include <map>
#include <numeric>

#include "engine/check.h"
#include "engine/engine.h"
#include "engine/stand_in.h"
#include "plan/plan.h"
#include "reduce/kernels.h"

namespace hvd {
namespace {

int64_t row_elements(const Shape& shape) {
  int64_t elements = 1;
  for (size_t d = 1; d < shape.size(); ++d) elements *= shape[d];
  return elements;
}

// Memory is moved as bytes where nothing is reduced.
int64_t bytes_per_row(const Buffer& buffer) {
  return row_elements(buffer.shape) * static_cast<int64_t>(size_of(buffer.dtype));
}

[[noreturn]] void throw_wrong_rows(const Operation& operation) {
  throw Error(ErrorKind::kInternal, "the coordinator answered " + operation.spec.name +
                                        " with numbers of rows that do not fit to what this rank submitted");
}

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

Batch Engine::batch_of(ProcessSet& set, const std::vector<std::shared_ptr<Operation>>& operations, DType dtype,
                       const Response& response) {
  const Operation& operation = *operations.front();
  const RequestSpec& spec = operation.spec;
  Batch batch;
  batch.set = set.id;
  batch.sequence = set.next_sequence++;
  batch.members = set.members;
  batch.set_rank = set.set_rank;
  batch.dtype = dtype;
  place_on_gpu(operations, response, batch);
  if (!traits_of(spec.kind).reduces) return batch;
  const bool average = spec.reduce_op == ReduceOp::kAverage;
  batch.op = average ? ReduceOp::kSum : spec.reduce_op;
  batch.prescale = operation.state.stands_in ? 1.0 : spec.prescale;  // neutral values stay as they are
  batch.prescaled = spec.weighted || spec.prescale != 1.0;
  batch.postscale = spec.postscale;
  if (spec.weighted) {
    // Before the sum, so that half types do not overflow.
    const double share = operation.request.weight.value_or(1.0) / response.names.front().total_weight;
    if (!operation.state.stands_in) batch.prescale = spec.prescale * share;
  } else if (average) {
    batch.divisor = response.num_averaged;
  }
  return batch;
}

void Engine::execute(ProcessSet& set, const Response& response) {
  std::vector<std::shared_ptr<Operation>> operations;
  operations.reserve(response.names.size());
  const bool stands_in = response.lacks(set.set_rank);
  for (const NameRef& ref : response.names) {
    operations.push_back(stands_in ? set.stand_in(ref) : take(set, ref));
    if (stands_in) {
      Operation& operation = *operations.back();
      if (operation.spec.on_gpu) operation.gpu.device = response.devices.at(static_cast<size_t>(set.set_rank));
      give_neutral_memory(operation, set.size(), device_of(operation));
    }
    operations.back()->state.priority = response.priority;
    record_answer(*operations.back(), false);
    note_step(set, *operations.back());
  }
  if (operations.empty()) throw Error(ErrorKind::kInternal, "the coordinator ordered an execution of nothing");
  check_alike(operations);
  // All members reduce in the same way, with the factors of the first.
  if (response.num_averaged < 1 || (operations.front()->spec.weighted && !(response.names.front().total_weight > 0))) {
    throw Error(ErrorKind::kInternal, "the coordinator ordered an average over nothing");
  }
  if (response.direct) counters_.direct_batches.fetch_add(1, std::memory_order_relaxed);
  if (operations.size() > 1) {
    counters_.fused_operations.fetch_add(operations.size(), std::memory_order_relaxed);
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

void Engine::start(ProcessSet& set, std::unique_ptr<Execution> execution,
                   std::vector<std::shared_ptr<Operation>> operations) {
  counters_.batches.fetch_add(1, std::memory_order_relaxed);
  for (const auto& operation : operations) {
    ++operation->state.executions_left;
    ++operation->state.executions_unended;
  }
  if (active_.empty()) last_progress_ = options_.clock->now();
  Active added{.set = &set,
               .execution = std::move(execution),
               .operations = std::move(operations),
               .started = std::chrono::steady_clock::now()};
  for (const auto& operation : added.operations) added.bytes += operation->spec.total_bytes();
  added.priority = added.operations.front()->state.priority;
  const auto place =
      std::find_if(active_.begin(), active_.end(), [&](const Active& other) { return added.goes_before(other); });
  record_execution(*active_.insert(place, std::move(added)), true);
}

// Allreduces that may be fused, or one group; a batch for each dtype. Broadcasts move bytes, so they need one batch.
void Engine::start_fused(ProcessSet& set, const std::vector<std::shared_ptr<Operation>>& operations,
                         const Response& response) {
  const RequestSpec& spec = operations.front()->spec;
  const bool is_broadcast = spec.kind == OpKind::kBroadcast;
  std::map<DType, Batch> batches;
  for (const auto& operation : operations) {
    for (size_t i = 0; i < operation->request.inputs.size(); ++i) {
      const Buffer& input = operation->request.inputs[i];
      const DType dtype = is_broadcast ? DType::kUInt8 : input.dtype;
      auto found = batches.find(dtype);
      if (found == batches.end()) found = batches.emplace(dtype, batch_of(set, operations, dtype, response)).first;
      const int64_t count = is_broadcast ? static_cast<int64_t>(input.bytes()) : input.count();
      found->second.inputs.push_back({input.data, count});
      found->second.outputs.push_back({operation->request.outputs[i].data, count});
      if (response.direct) add_reachable(*operation, found->second.inputs.back(), found->second);
    }
  }
  const std::optional<int> root = set.set_rank_of(spec.root);
  if (is_broadcast && !root) throw Error(ErrorKind::kInternal, spec.name + " has a root that is not a member");
  for (auto& [dtype, batch] : batches) {
    if (root) batch.root = *root;
    const Collective collective = collective_of(spec.kind, spec.reduce_op);
    start(set, backend_for(*operations.front()).execute(collective, std::move(batch)), operations);
  }
}

void Engine::start_allgather(ProcessSet& set, const std::shared_ptr<Operation>& operation, const Response& response) {
  const NameRef& ref = response.names.front();
  if (ref.extents.size() != set.members.size()) throw_wrong_rows(*operation);
  for (size_t i = 0; i < operation->request.inputs.size(); ++i) {
    const Buffer& input = operation->request.inputs[i];
    std::vector<int64_t> counts;
    for (const auto& rows : ref.extents) counts.push_back(rows.at(i));
    const bool mine_fits = counts[static_cast<size_t>(set.set_rank)] == input.shape.front();
    if (!mine_fits || !are_rows(counts, bytes_per_row(input))) throw_wrong_rows(*operation);
    const int64_t num_rows = std::accumulate(counts.begin(), counts.end(), int64_t{0});
    for (int64_t& count : counts) count *= bytes_per_row(input);
    operation->result.arrays.push_back(make_result(*operation, input, num_rows));
    Batch batch = batch_of(set, {operation}, DType::kUInt8, response);
    batch.inputs = {{input.data, static_cast<int64_t>(input.bytes())}};
    batch.outputs = {{operation->result.arrays.back().data.get(), num_rows * bytes_per_row(input)}};
    batch.counts = std::move(counts);
    start(set, backend_for(*operation).execute(Collective::kAllgather, std::move(batch)), {operation});
  }
}

void Engine::start_alltoall(ProcessSet& set, const std::shared_ptr<Operation>& operation, const Response& response) {
  const NameRef& ref = response.names.front();
  const Buffer& input = operation->request.inputs.front();
  const int64_t row_bytes = bytes_per_row(input);
  std::vector<std::vector<int64_t>> counts = ref.extents;
  const bool fits = counts.size() == set.members.size() &&
                    std::all_of(counts.begin(), counts.end(), [&](const std::vector<int64_t>& splits) {
                      return splits.size() == counts.size() && are_rows(splits, row_bytes);
                    });
  // A rank that has joined gives nothing.
  const std::vector<int64_t> mine =
      operation->state.stands_in ? std::vector<int64_t>(counts.size(), 0) : operation->state.splits;
  if (!fits || counts[static_cast<size_t>(set.set_rank)] != mine) throw_wrong_rows(*operation);
  int64_t num_rows = 0;
  for (auto& splits : counts) {
    const int64_t rows = splits.at(static_cast<size_t>(set.set_rank));
    operation->result.received_splits.push_back(rows);
    num_rows += rows;
    for (int64_t& split : splits) split *= row_bytes;
  }
  operation->result.arrays.push_back(make_result(*operation, input, num_rows));
  Batch batch = batch_of(set, {operation}, DType::kUInt8, response);
  batch.inputs = {{input.data, static_cast<int64_t>(input.bytes())}};
  batch.outputs = {{operation->result.arrays.back().data.get(), num_rows * row_bytes}};
  batch.splits = std::move(counts);
  start(set, backend_for(*operation).execute(Collective::kAlltoall, std::move(batch)), {operation});
}

void Engine::start_reducescatter(ProcessSet& set, const std::shared_ptr<Operation>& operation,
                                 const Response& response) {
  for (size_t i = 0; i < operation->request.inputs.size(); ++i) {
    const Buffer& input = operation->request.inputs[i];
    Batch batch = batch_of(set, {operation}, input.dtype, response);
    for (int member = 0; member < set.size(); ++member) {
      batch.counts.push_back(share_of(input.shape.front(), member, set.size()).size() * row_elements(input.shape));
    }
    batch.inputs = {{input.data, input.count()}};
    batch.outputs = {{operation->request.outputs[i].data, operation->request.outputs[i].count()}};
    start(set, backend_for(*operation).execute(Collective::kReducescatter, std::move(batch)), {operation});
  }
}

bool Engine::advance_executions() {
  if (active_.empty()) return false;
  bool progressed = transport_->poll_data();
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
  if (progressed || transport_->set_aside()) {
    last_progress_ = options_.clock->now();
    stuck_reported_ = false;
    return true;
  }
  look_for_missing_peers();
  return false;
}

// With all memory free again. An operation may have been failed by its coordinator's farewell meanwhile.
void Engine::end(const Active& active) {
  if (active.operations.front()->spec.on_gpu) record_device(active, false);
  note_batch(active);
  for (const auto& operation : active.operations) {
    if (--operation->state.executions_unended > 0) continue;
    operation->gpu.settle();
    if (operation->done()) operation->request.keeper.reset();
  }
}

// Nothing can go on: an execution may wait for a rank that will never send or read again.
void Engine::look_for_missing_peers() {
  for (const Active& active : active_) {
    for (int peer = 0; peer < size_; ++peer) {
      const auto& end = left_peers_[static_cast<size_t>(peer)];
      const bool gone = end ? !transport_->data_may_follow(peer) : transport_->data_ended(peer);
      if (!gone || !active.execution->gives_up_on(peer)) continue;
      if (!end) throw lost(peer);
      throw Error(ErrorKind::kShutDown, *end + "; it left in the middle of " + active.operations.front()->spec.name);
    }
  }
}

// The name is free again before the caller sees the result, so that it can submit the same name at once.
void Engine::finish(Operation& operation, const std::optional<Error>& error) {
  record_end(operation);
  if (!operation.state.stands_in) {
    const std::lock_guard lock(queue_mutex_);
    const auto set = memberships_.find(operation.request.process_set);
    if (set != memberships_.end()) {
      set->second.names_in_flight.erase(operation.spec.name);
      if (operation.spec.kind == OpKind::kJoin) {
        ++set->second.num_joins;
        set->second.num_unnamed = 0;
      }
    }
    if (error && operation.spec.kind == OpKind::kRemoveProcessSet) {  // the ranks did not agree: it stays
      memberships_.at(static_cast<uint32_t>(operation.spec.ranks.front())).closing = false;
    }
  }
  complete(operation, error);
}

// The callback leaves the operation first: a caller of another thread may destroy the operation as soon as it is done.
// The keeper goes before that, too, so that whoever sees the end sees the memory free.
void Engine::complete(Operation& operation, const std::optional<Error>& error) {
  if (operation.state.executions_unended == 0) operation.gpu.settle();  // no device has to do with it
  if (operation.device_has_ended()) operation.request.keeper.reset();
  if (operation.request.on_done) callbacks_.push_back(std::exchange(operation.request.on_done, nullptr));
  if (error) {
    note_cause(operation, *error);
    operation.fail(*error);
  } else {
    operation.complete();
  }
}

}  // namespace hvd
