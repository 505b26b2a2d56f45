#include "engine/stand_in.h"

#include "plan/plan.h"
#include "reduce/neutral.h"

namespace hvd {
namespace {

Buffer view(const OwnedArray& array) { return {array.data.get(), array.dtype, array.shape}; }

}  // namespace

void give_neutral_memory(Operation& operation, int num_members) {
  const RequestSpec& spec = operation.spec;
  const ReduceOp op = spec.reduce_op == ReduceOp::kAverage ? ReduceOp::kSum : spec.reduce_op;
  for (const TensorSpec& tensor : spec.tensors) {
    Shape shape = tensor.shape;
    if (spec.first_dimension_differs()) shape.front() = 0;
    const OwnedArray& input = operation.scratch.emplace_back(make_array(tensor.dtype, shape));
    operation.inputs.push_back(view(input));
    const bool reduces = spec.kind == OpKind::kAllreduce || spec.kind == OpKind::kReducescatter;
    if (reduces) fill_neutral(tensor.dtype, op, input.data.get(), static_cast<size_t>(num_elements(shape)));
    if (spec.kind == OpKind::kReducescatter) {
      shape.front() = share_of(shape.front(), operation.set_rank, num_members).size();
      operation.outputs.push_back(view(operation.scratch.emplace_back(make_array(tensor.dtype, shape))));
    } else {
      operation.outputs.push_back(operation.inputs.back());
    }
  }
}

}  // namespace hvd
