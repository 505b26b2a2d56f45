// What one batch consists of: memory of its operations, factors, counts.
#include <algorithm>
#include <map>
#include <numeric>
#include <span>

#include "engine/execution/executions.h"
#include "engine/submission/check.h"
#include "plan/plan.h"

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

// Before the input is added.
void add_residual(const Operation& operation, size_t index, Batch& batch) {
  const std::vector<Buffer>& residuals = operation.request.residuals;
  std::byte* data = residuals.empty() ? nullptr : residuals[index].data;
  batch.residuals.push_back({data, data == nullptr ? 0 : residuals[index].count()});
}

}  // namespace

Batch Executions::batch_of(SetMembers& set, const Operations& operations, DType dtype, const Response& response) const {
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
  if (is_floating(dtype)) batch.quantization = spec.quantization;
  const bool average = spec.reduce_op == ReduceOp::kAverage;
  batch.op = average ? ReduceOp::kSum : spec.reduce_op;
  const bool is_neutral = operation.state.stands_in || operation.has_no_weight();
  batch.prescale = is_neutral ? 1.0 : spec.prescale;  // neutral values stay as they are
  batch.prescaled = spec.weighted || spec.prescale != 1.0;
  batch.postscale = spec.postscale;
  if (spec.weighted) {
    // Before the sum, so that half types do not overflow.
    const double share = operation.request.weight.value_or(1.0) / response.names.front().total_weight;
    if (!is_neutral) batch.prescale = spec.prescale * share;
  } else if (average) {
    batch.divisor = response.num_averaged;
  }
  return batch;
}

// What was agreed on before is looked at again: memory follows from it.
void Executions::place_on_gpu(const Operations& operations, const Response& response, Batch& batch) const {
  const Operation& first = *operations.front();
  const bool on_gpu = first.spec.on_gpu;
  const bool fits = response.devices.size() == (on_gpu ? batch.members.size() : 0) &&
                    (!on_gpu || response.devices[static_cast<size_t>(batch.set_rank)] == first.gpu.device) &&
                    std::all_of(operations.begin(), operations.end(), [&](const auto& operation) {
                      return operation->spec.on_gpu == on_gpu && (!on_gpu || operation->gpu.device == first.gpu.device);
                    });
  if (!fits) {
    throw Error(ErrorKind::kInternal,
                "the coordinator ordered " + first.spec.name + " on other devices than those that this rank named");
  }
  if (!on_gpu) return;
  const std::shared_ptr<EngineDevice> device = with_.devices.device_of(first);
  batch.devices.assign(response.devices.begin(), response.devices.end());
  batch.gpu = device->gpu();
  for (const auto& operation : operations) {
    batch.ready.insert(batch.ready.end(), operation->gpu.ready.begin(), operation->gpu.ready.end());
  }
  if (!first.result.arrays.empty()) batch.ready.push_back(device->record());
  batch.what = first.spec.name;
  if (operations.size() > 1) batch.what += " and " + std::to_string(operations.size() - 1) + " others";
}

Backend& Executions::backend_for(const Operation& operation) {
  if (!operation.spec.on_gpu) return *backends_.cpu;
  with_.counters.gpu_batches.fetch_add(1, std::memory_order_relaxed);
  return *backends_.gpu;
}

// Allreduces that may be fused, or one group; a batch for each dtype. Broadcasts move bytes, so they need one batch.
void Executions::start_fused(SetMembers& set, const Operations& operations, const Response& response) {
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
      if (spec.quantization != Quantization::kNone) add_residual(*operation, i, found->second);
      found->second.inputs.push_back({input.data, count});
      found->second.outputs.push_back({operation->request.outputs[i].data, count});
      if (response.direct) SharedArrays::add_reachable(*operation, found->second.inputs.back(), found->second);
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

// Where the rows of a tensor go that come from each member: into memory of the caller, if it gave any.
std::vector<Extent> Executions::place_rows(Operation& operation, size_t tensor,
                                           const std::vector<int64_t>& rows) const {
  const auto first = operation.state.expected.begin() + static_cast<std::ptrdiff_t>(tensor * rows.size());
  if (!operation.state.expected.empty() && !std::equal(rows.begin(), rows.end(), first)) throw_wrong_rows(operation);
  const Buffer& input = operation.request.inputs[tensor];
  if (operation.request.outputs.empty()) {
    const int64_t num_rows = std::accumulate(rows.begin(), rows.end(), int64_t{0});
    operation.result.arrays.push_back(with_.devices.make_result(operation, input, num_rows));
    return {{operation.result.arrays.back().data.get(), num_rows * bytes_per_row(input)}};
  }
  const size_t per_tensor = operation.request.outputs.size() / operation.spec.tensors.size();
  std::vector<Extent> outputs;
  for (const Buffer& output : std::span(operation.request.outputs).subspan(tensor * per_tensor, per_tensor)) {
    outputs.push_back({output.data, static_cast<int64_t>(output.bytes())});
  }
  return outputs;
}

void Executions::start_allgather(SetMembers& set, const std::shared_ptr<Operation>& operation,
                                 const Response& response) {
  const NameRef& ref = response.names.front();
  if (ref.extents.size() != set.members.size()) throw_wrong_rows(*operation);
  for (size_t i = 0; i < operation->request.inputs.size(); ++i) {
    const Buffer& input = operation->request.inputs[i];
    std::vector<int64_t> counts;
    for (const auto& rows : ref.extents) counts.push_back(rows.at(i));
    const bool mine_fits = counts[static_cast<size_t>(set.set_rank)] == input.shape.front();
    if (!mine_fits || !are_rows(counts, bytes_per_row(input))) throw_wrong_rows(*operation);
    std::vector<Extent> outputs = place_rows(*operation, i, counts);
    for (int64_t& count : counts) count *= bytes_per_row(input);
    Batch batch = batch_of(set, {operation}, DType::kUInt8, response);
    batch.inputs = {{input.data, static_cast<int64_t>(input.bytes())}};
    batch.outputs = std::move(outputs);
    batch.counts = std::move(counts);
    start(set, backend_for(*operation).execute(Collective::kAllgather, std::move(batch)), {operation});
  }
}

void Executions::start_alltoall(SetMembers& set, const std::shared_ptr<Operation>& operation,
                                const Response& response) {
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
  for (auto& splits : counts) {
    operation->result.received_splits.push_back(splits.at(static_cast<size_t>(set.set_rank)));
    for (int64_t& split : splits) split *= row_bytes;
  }
  std::vector<Extent> outputs = place_rows(*operation, 0, operation->result.received_splits);
  Batch batch = batch_of(set, {operation}, DType::kUInt8, response);
  for (const Buffer& given : operation->request.inputs) {
    batch.inputs.push_back({given.data, static_cast<int64_t>(given.bytes())});
  }
  batch.outputs = std::move(outputs);
  batch.splits = std::move(counts);
  start(set, backend_for(*operation).execute(Collective::kAlltoall, std::move(batch)), {operation});
}

void Executions::start_reducescatter(SetMembers& set, const std::shared_ptr<Operation>& operation,
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

}  // namespace hvd
