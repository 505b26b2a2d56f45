#include "engine/check.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "plan/plan.h"

namespace hvd {
namespace {

[[noreturn]] void refuse(const Operation& operation, const std::string& what) {
  throw Error(ErrorKind::kUsage, operation.spec.name + ": " + what);
}

void check_outputs(const Operation& operation, const std::vector<int>& members, int set_rank) {
  const bool scattered = operation.spec.kind == OpKind::kReducescatter;
  if (operation.outputs.size() != operation.inputs.size()) refuse(operation, "needs one output for each input");
  for (size_t i = 0; i < operation.inputs.size(); ++i) {
    Shape expected = operation.inputs[i].shape;
    if (scattered) expected.front() = share_of(expected.front(), set_rank, static_cast<int>(members.size())).size();
    const Buffer& output = operation.outputs[i];
    if (output.dtype == operation.inputs[i].dtype && output.shape == expected) continue;
    refuse(operation, "the output must be " + std::string(name_of(operation.inputs[i].dtype)) + " " +
                          to_string(expected) + ", but is " + std::string(name_of(output.dtype)) + " " +
                          to_string(output.shape));
  }
}

void check_splits(Operation& operation, size_t num_members) {
  if (operation.inputs.size() != 1) refuse(operation, "alltoall takes one tensor");
  const int64_t num_rows = operation.inputs.front().shape.front();
  if (!operation.has_splits) {
    const auto members = static_cast<int64_t>(num_members);
    if (num_rows % members != 0) {
      refuse(operation, "without splits the first dimension, " + std::to_string(num_rows) +
                            ", must be a multiple of the number of ranks, " + std::to_string(members));
    }
    operation.splits.assign(num_members, num_rows / members);
  }
  if (operation.splits.size() != num_members) {
    refuse(operation,
           "has " + std::to_string(operation.splits.size()) + " splits for " + std::to_string(num_members) + " ranks");
  }
  if (std::any_of(operation.splits.begin(), operation.splits.end(), [](int64_t split) { return split < 0; })) {
    refuse(operation, "a split is negative");
  }
  const int64_t sum = std::accumulate(operation.splits.begin(), operation.splits.end(), int64_t{0});
  if (sum > num_rows) {
    refuse(operation, "the splits sum up to " + std::to_string(sum) + ", more than the first dimension, " +
                          std::to_string(num_rows));
  }
}

void check_reduce_op(const Operation& operation) {
  const ReduceOp op = operation.spec.reduce_op;
  const bool all_floating = std::all_of(operation.inputs.begin(), operation.inputs.end(),
                                        [](const Buffer& input) { return is_floating(input.dtype); });
  if (op == ReduceOp::kAdasum && !all_floating) refuse(operation, "Adasum needs tensors of a floating type");
  if (operation.spec.weighted) {
    if (op != ReduceOp::kAverage) refuse(operation, "weight needs op=Average");
    if (!all_floating) refuse(operation, "weight needs tensors of a floating type");
    if (!(operation.weight >= 0.0) || std::isinf(operation.weight)) {
      refuse(operation, "weight must be finite and not negative, but is " + std::to_string(operation.weight));
    }
  }
  if (operation.spec.kind == OpKind::kReducescatter && op != ReduceOp::kSum && op != ReduceOp::kAverage) {
    throw Error(ErrorKind::kInternal,
                operation.spec.name + ": reducescatter supports Sum and Average only, not " + std::string(name_of(op)));
  }
}

}  // namespace

void check_operation(Operation& operation, const std::vector<int>& members) {
  const OpKind kind = operation.spec.kind;
  const bool moves_data = kind <= OpKind::kReducescatter;
  if (!moves_data) return;
  if (operation.inputs.empty()) refuse(operation, "needs at least one tensor");
  for (const Buffer& input : operation.inputs) {
    operation.spec.tensors.push_back({input.dtype, input.shape});
    const bool by_rows = kind == OpKind::kAllgather || kind == OpKind::kAlltoall || kind == OpKind::kReducescatter;
    if (by_rows && input.shape.empty()) {
      refuse(operation, std::string(name_of(kind)) + " works along the first dimension, but the tensor is a scalar");
    }
  }
  if (kind == OpKind::kAllreduce || kind == OpKind::kReducescatter) check_reduce_op(operation);
  if (kind == OpKind::kAlltoall) check_splits(operation, members.size());
  if (kind == OpKind::kBroadcast && std::find(members.begin(), members.end(), operation.spec.root) == members.end()) {
    refuse(operation, "root rank " + std::to_string(operation.spec.root) + " is not a member of the process set");
  }
  const bool has_outputs = kind == OpKind::kAllreduce || kind == OpKind::kBroadcast || kind == OpKind::kReducescatter;
  if (has_outputs) check_outputs(operation, members, operation.set_rank);
}

}  // namespace hvd
