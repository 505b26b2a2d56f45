#include <algorithm>
#include <map>

#include "engine/engine.h"
#include "plan/plan.h"

namespace hvd {
namespace {

int64_t row_elements(const Shape& shape) {
  int64_t elements = 1;
  for (size_t d = 1; d < shape.size(); ++d) elements *= shape[d];
  return elements;
}

// A result whose first dimension is known now.
OwnedArray allocate(const Buffer& like, int64_t num_rows) {
  OwnedArray array{like.dtype, like.shape, nullptr};
  array.shape.front() = num_rows;
  const size_t bytes = static_cast<size_t>(num_elements(array.shape)) * size_of(like.dtype);
  // Aligned as frameworks like it, and never empty, so that there is an address.
  auto* memory = static_cast<std::byte*>(::operator new[](std::max<size_t>(bytes, 1), std::align_val_t(64)));
  array.data =
      std::shared_ptr<std::byte[]>(memory, [](std::byte* data) { ::operator delete[](data, std::align_val_t(64)); });
  return array;
}

// Memory is moved as bytes where nothing is reduced.
int64_t bytes_per_row(const Buffer& buffer) {
  return row_elements(buffer.shape) * static_cast<int64_t>(size_of(buffer.dtype));
}

}  // namespace

Batch Engine::batch_of(ProcessSet& set, const RequestSpec& spec, DType dtype) {
  Batch batch;
  batch.set = set.id;
  batch.sequence = set.next_sequence++;
  batch.members = set.members;
  batch.set_rank = set.set_rank;
  batch.dtype = dtype;
  const bool reduces = spec.kind == OpKind::kAllreduce || spec.kind == OpKind::kReducescatter;
  if (!reduces) return batch;
  const bool average = spec.reduce_op == ReduceOp::kAverage;
  batch.op = average ? ReduceOp::kSum : spec.reduce_op;
  batch.prescale = spec.prescale;
  batch.postscale = spec.postscale / (average ? static_cast<double>(set.size()) : 1.0);
  return batch;
}

void Engine::execute(ProcessSet& set, const Response& response) {
  std::vector<std::shared_ptr<Operation>> operations;
  operations.reserve(response.names.size());
  for (const NameRef& ref : response.names) operations.push_back(set.take(ref));
  if (operations.empty()) throw Error(ErrorKind::kInternal, "the coordinator ordered an execution of nothing");
  if (operations.size() > 1) {
    counters_.fused_operations.fetch_add(operations.size(), std::memory_order_relaxed);
  }
  const std::shared_ptr<Operation>& first = operations.front();
  switch (first->spec.kind) {
    case OpKind::kAllreduce:
    case OpKind::kBroadcast:
      start_fused(set, operations);
      break;
    case OpKind::kAllgather:
      start_allgather(set, first, response.names.front());
      break;
    case OpKind::kAlltoall:
      start_alltoall(set, first, response.names.front());
      break;
    case OpKind::kReducescatter:
      start_reducescatter(set, first);
      break;
    case OpKind::kBarrier:
      throw Error(ErrorKind::kInternal, "a barrier has nothing to execute");
  }
}

void Engine::start(ProcessSet& set, std::unique_ptr<Execution> execution,
                   std::vector<std::shared_ptr<Operation>> operations) {
  counters_.batches.fetch_add(1, std::memory_order_relaxed);
  for (const auto& operation : operations) ++operation->executions_left;
  if (active_.empty()) last_progress_ = options_.clock->now();
  active_.push_back({&set, std::move(execution), std::move(operations)});
}

// Allreduces that may be fused, or one group; a batch for each dtype. Broadcasts move bytes, so they need one batch.
void Engine::start_fused(ProcessSet& set, const std::vector<std::shared_ptr<Operation>>& operations) {
  const RequestSpec& spec = operations.front()->spec;
  const bool is_broadcast = spec.kind == OpKind::kBroadcast;
  std::map<DType, Batch> batches;
  for (const auto& operation : operations) {
    for (size_t i = 0; i < operation->inputs.size(); ++i) {
      const Buffer& input = operation->inputs[i];
      const DType dtype = is_broadcast ? DType::kUInt8 : input.dtype;
      auto found = batches.find(dtype);
      if (found == batches.end()) found = batches.emplace(dtype, batch_of(set, spec, dtype)).first;
      const int64_t count = is_broadcast ? static_cast<int64_t>(input.bytes()) : input.count();
      found->second.inputs.push_back({input.data, count});
      found->second.outputs.push_back({operation->outputs[i].data, count});
    }
  }
  for (auto& [dtype, batch] : batches) {
    if (is_broadcast) {
      start(set, backend_->broadcast(std::move(batch), *set.set_rank_of(spec.root)), operations);
    } else {
      start(set, backend_->allreduce(std::move(batch)), operations);
    }
  }
}

void Engine::start_allgather(ProcessSet& set, const std::shared_ptr<Operation>& operation, const NameRef& ref) {
  for (size_t i = 0; i < operation->inputs.size(); ++i) {
    const Buffer& input = operation->inputs[i];
    int64_t num_rows = 0;
    std::vector<int64_t> counts;
    for (const auto& rows : ref.extents) {
      num_rows += rows.at(i);
      counts.push_back(rows.at(i) * bytes_per_row(input));
    }
    operation->results.push_back(allocate(input, num_rows));
    Batch batch = batch_of(set, operation->spec, DType::kUInt8);
    batch.inputs = {{input.data, static_cast<int64_t>(input.bytes())}};
    batch.outputs = {{operation->results.back().data.get(), num_rows * bytes_per_row(input)}};
    start(set, backend_->allgather(std::move(batch), counts), {operation});
  }
}

void Engine::start_alltoall(ProcessSet& set, const std::shared_ptr<Operation>& operation, const NameRef& ref) {
  const Buffer& input = operation->inputs.front();
  const int64_t row_bytes = bytes_per_row(input);
  std::vector<std::vector<int64_t>> counts = ref.extents;
  int64_t num_rows = 0;
  for (auto& splits : counts) {
    const int64_t rows = splits.at(static_cast<size_t>(set.set_rank));
    operation->received_splits.push_back(rows);
    num_rows += rows;
    for (int64_t& split : splits) split *= row_bytes;
  }
  operation->results.push_back(allocate(input, num_rows));
  Batch batch = batch_of(set, operation->spec, DType::kUInt8);
  batch.inputs = {{input.data, static_cast<int64_t>(input.bytes())}};
  batch.outputs = {{operation->results.back().data.get(), num_rows * row_bytes}};
  start(set, backend_->alltoall(std::move(batch), counts), {operation});
}

void Engine::start_reducescatter(ProcessSet& set, const std::shared_ptr<Operation>& operation) {
  for (size_t i = 0; i < operation->inputs.size(); ++i) {
    const Buffer& input = operation->inputs[i];
    std::vector<int64_t> counts;
    for (int member = 0; member < set.size(); ++member) {
      counts.push_back(share_of(input.shape.front(), member, set.size()).size() * row_elements(input.shape));
    }
    Batch batch = batch_of(set, operation->spec, input.dtype);
    batch.inputs = {{input.data, input.count()}};
    batch.outputs = {{operation->outputs[i].data, operation->outputs[i].count()}};
    start(set, backend_->reducescatter(std::move(batch), counts), {operation});
  }
}

bool Engine::advance_executions() {
  if (active_.empty()) return false;
  transport_->poll_data();
  bool progressed = false;
  for (size_t i = 0; i < active_.size();) {
    Active& active = active_[i];
    progressed = active.execution->advance() || progressed;
    if (!active.execution->done()) {
      ++i;
      continue;
    }
    progressed = true;
    for (const auto& operation : active.operations) {
      if (--operation->executions_left == 0) finish(*operation);
    }
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

// Nothing can go on: an execution may wait for a rank that will never send or read again.
void Engine::look_for_missing_peers() {
  for (const Active& active : active_) {
    for (int peer = 0; peer < size_; ++peer) {
      const auto& reason = left_peers_[static_cast<size_t>(peer)];
      const bool gone = reason ? !transport_->data_may_follow(peer) : transport_->data_ended(peer);
      if (!gone || !active.execution->waits_for(peer)) continue;
      if (!reason) throw lost(peer);
      throw Error(ErrorKind::kShutDown, name_of_rank(peer) + " has shut Horovod down (" + *reason +
                                            ") in the middle of " + active.operations.front()->spec.name);
    }
  }
}

// The name is free again before the caller sees the result, so that it can submit the same name at once.
void Engine::finish(Operation& operation, const std::optional<Error>& error) {
  {
    const std::lock_guard lock(queue_mutex_);
    memberships_[operation.set].names_in_flight.erase(operation.spec.name);
  }
  if (error) {
    operation.fail(*error);
  } else {
    operation.complete();
  }
}

}  // namespace hvd
