#include "engine/devices/stand_in.h"

#include <cstring>

#include "plan/plan.h"
#include "reduce/neutral.h"

namespace hvd {
namespace {

Buffer view(const OwnedArray& array) { return {array.data.get(), array.dtype, array.shape, array.device()}; }

OwnedArray make_neutral(DType dtype, ReduceOp op, Shape shape) {
  OwnedArray array = make_array(dtype, std::move(shape));
  fill_neutral(dtype, op, array.data.get(), static_cast<size_t>(num_elements(array.shape)));
  return array;
}

// Zeros need not come from the host, where the other values wait until they are copied.
OwnedArray make_neutral_on(const std::shared_ptr<EngineDevice>& device, DType dtype, ReduceOp op, Shape shape,
                           std::vector<OwnedArray>& scratch) {
  OwnedArray array = make_device_array(device, dtype, std::move(shape));
  if (op == ReduceOp::kSum || op == ReduceOp::kAdasum) {
    device->gpu()->fill(array.data.get(), 0, array.bytes(), device->stream());
    return array;
  }
  const OwnedArray& values = scratch.emplace_back(make_neutral(dtype, op, array.shape));
  device->gpu()->copy_from_host(array.data.get(), values.data.get(), array.bytes(), device->stream());
  return array;
}

}  // namespace

void give_neutral_memory(Operation& operation, int num_members, const std::shared_ptr<EngineDevice>& device) {
  const RequestSpec& spec = operation.spec;
  const ReduceOp op = spec.reduce_op == ReduceOp::kAverage ? ReduceOp::kSum : spec.reduce_op;
  const OpTraits traits = traits_of(spec.kind);
  const auto make = [&](DType dtype, const Shape& shape) {
    return device == nullptr ? make_array(dtype, shape) : make_device_array(device, dtype, shape);
  };
  const auto make_input = [&](DType dtype, const Shape& shape) {
    if (!traits.reduces) return make(dtype, shape);
    if (device == nullptr) return make_neutral(dtype, op, shape);
    return make_neutral_on(device, dtype, op, shape, operation.state.scratch);
  };
  for (const TensorSpec& tensor : spec.tensors) {
    Shape shape = tensor.shape;
    if (spec.first_dimension_differs()) shape.front() = 0;
    operation.state.scratch.push_back(make_input(tensor.dtype, shape));
    operation.request.inputs.push_back(view(operation.state.scratch.back()));
    if (traits.scatters) {
      shape.front() = share_of(shape.front(), operation.state.set_rank, num_members).size();
      operation.request.outputs.push_back(view(operation.state.scratch.emplace_back(make(tensor.dtype, shape))));
    } else if (traits.fills_outputs) {
      operation.request.outputs.push_back(operation.request.inputs.back());
    }
  }
  if (device != nullptr) operation.gpu.ready.push_back(device->record());
}

void withhold_values(Operation& operation, const std::shared_ptr<EngineDevice>& device) {
  const bool in_outputs = device == nullptr && !traits_of(operation.spec.kind).scatters;
  for (size_t i = 0; i < operation.request.inputs.size(); ++i) {
    Buffer& input = operation.request.inputs[i];
    if (in_outputs) {  // which are overwritten anyway
      input.data = operation.request.outputs[i].data;
      if (input.bytes() > 0) std::memset(input.data, 0, input.bytes());
      continue;
    }
    std::vector<OwnedArray>& scratch = operation.state.scratch;
    // Not in the memory of the caller, which a device may use for long: the engine's stream waits for nobody.
    scratch.push_back(device == nullptr ? make_neutral(input.dtype, ReduceOp::kSum, input.shape)
                                        : make_neutral_on(device, input.dtype, ReduceOp::kSum, input.shape, scratch));
    input.data = scratch.back().data.get();
  }
  if (device != nullptr) operation.gpu.ready.push_back(device->record());
}

}  // namespace hvd
