#include "engine/submission/check.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "engine/submission/rows.h"
#include "plan/plan.h"

namespace hvd {
namespace {

// What one tensor, or one result, can have: more than any machine, and far from where arithmetic wraps.
constexpr int64_t kMostBytes = int64_t{1} << 46;

// Bytes of a tensor, or nothing if its shape is none.
std::optional<int64_t> bytes_of(const TensorSpec& tensor) {
  auto bytes = static_cast<int64_t>(size_of(tensor.dtype));
  for (const int64_t extent : tensor.shape) {
    if (extent < 0 || __builtin_mul_overflow(bytes, std::max<int64_t>(extent, 1), &bytes) || bytes > kMostBytes) {
      return std::nullopt;
    }
  }
  return bytes;
}

// What old scripts catch as NotImplementedError, RuntimeError or ValueError.
[[noreturn]] void refuse_unsupported(const Operation& operation, const std::string& what) {
  throw Error(ErrorKind::kUnsupported, operation.spec.name + ": " + what);
}

void check_outputs(const Operation& operation, const std::vector<int>& members, int set_rank) {
  const bool scattered = traits_of(operation.spec.kind).scatters;
  if (operation.request.outputs.size() != operation.request.inputs.size())
    refuse(operation, "needs one output for each input");
  for (size_t i = 0; i < operation.request.inputs.size(); ++i) {
    Shape expected = operation.request.inputs[i].shape;
    if (scattered) expected.front() = share_of(expected.front(), set_rank, static_cast<int>(members.size())).size();
    const Buffer& output = operation.request.outputs[i];
    if (output.dtype == operation.request.inputs[i].dtype && output.shape == expected) continue;
    refuse(operation, "the output must be " + std::string(name_of(operation.request.inputs[i].dtype)) + " " +
                          to_string(expected) + ", but is " + std::string(name_of(output.dtype)) + " " +
                          to_string(output.shape));
  }
}

// Between two ranks; what both must agree on is looked at when they meet.
void check_transfer(Operation& operation, const std::vector<int>& members, int set_rank) {
  const bool sends = operation.spec.kind == OpKind::kSend;
  const SubmitRequest& request = operation.request;
  const Buffers& tensors = sends ? request.inputs : request.outputs;
  if (tensors.size() != 1 || request.inputs.size() + request.outputs.size() != 1) {
    refuse(operation, sends ? "send takes one input" : "recv takes one output");
  }
  if (request.tag < 0) refuse(operation, "the tag is negative: " + std::to_string(request.tag));
  operation.spec.tensors.push_back({tensors.front().dtype, tensors.front().shape});
  const int peer = operation.spec.root;
  if (!sends && peer < 0) {
    if (members.size() < 2) refuse(operation, "there is no other rank in the process set");
    return;
  }
  if (std::find(members.begin(), members.end(), peer) == members.end()) {
    refuse(operation, "rank " + std::to_string(peer) + " is not a member of the process set");
  }
  if (peer == members[static_cast<size_t>(set_rank)]) {
    refuse(operation, std::string(sends ? "the receiver" : "the sender") + " is this rank itself; copy the tensor");
  }
}

void check_reduce_op(const Operation& operation) {
  const ReduceOp op = operation.spec.reduce_op;
  const bool all_floating = std::all_of(operation.request.inputs.begin(), operation.request.inputs.end(),
                                        [](const Buffer& input) { return is_floating(input.dtype); });
  const OpTraits traits = traits_of(operation.spec.kind);
  if (traits.sums_only && op != ReduceOp::kSum && op != ReduceOp::kAverage) {
    refuse_unsupported(operation,
                       std::string(traits.name) + " supports Sum and Average only, not " + std::string(name_of(op)));
  }
  if (op == ReduceOp::kAdasum && !all_floating) {
    refuse_unsupported(operation, "Adasum needs tensors of a floating type");
  }
  if (operation.spec.weighted) {
    if (op != ReduceOp::kAverage) refuse(operation, "weight needs op=Average");
    if (!all_floating) refuse(operation, "weight needs tensors of a floating type");
    const double weight = operation.request.weight.value_or(1.0);
    if (!(weight >= 0.0) || std::isinf(weight)) {
      refuse(operation, "weight must be finite and not negative, but is " + std::to_string(weight));
    }
  }
}

void check_quantization(const Operation& operation) {
  const SubmitRequest& request = operation.request;
  if (request.quantization == Quantization::kNone) {
    if (!request.residuals.empty()) refuse(operation, "has residuals, but nothing is quantized");
    return;
  }
  const std::string format(name_of(request.quantization));
  if (request.kind != OpKind::kAllreduce) {
    refuse_unsupported(operation, format + " compression is for allreduce only, not for " + name_of(request.kind));
  }
  if (request.reduce_op != ReduceOp::kSum && request.reduce_op != ReduceOp::kAverage) {
    refuse_unsupported(operation, format + " compression is for Sum and Average only, not for " +
                                      std::string(name_of(request.reduce_op)));
  }
  if (operation.gpu.device != kCpuDevice) {
    refuse_unsupported(operation, format + " compression takes tensors on the CPU, but this one is on a GPU. Use " +
                                      "fp16 or bf16 there");
  }
  if (request.residuals.empty()) return;
  if (request.residuals.size() != request.inputs.size()) refuse(operation, "needs no residuals, or one for each input");
  for (size_t i = 0; i < request.residuals.size(); ++i) {
    const Buffer& residual = request.residuals[i];
    const bool fits = residual.dtype == DType::kFloat32 && residual.device == kCpuDevice &&
                      residual.count() == request.inputs[i].count();
    if (!fits) refuse(operation, "a residual must be float32 on the CPU, of as many elements as its input");
  }
}

}  // namespace

void refuse(const Operation& operation, const std::string& what) {
  throw Error(ErrorKind::kUsage, operation.spec.name + ": " + what);
}

void check_operation(Operation& operation, const std::vector<int>& members) {
  const OpKind kind = operation.spec.kind;
  if ((operation.spec.name == kJoinName) != (kind == OpKind::kJoin)) {
    refuse(operation, std::string("the name ") + kJoinName + " belongs to join, which has no other");
  }
  check_quantization(operation);
  const OpTraits traits = traits_of(kind);
  if (!traits.moves_data) return;
  if (traits.is_transfer) {
    check_transfer(operation, members, operation.state.set_rank);
    return;
  }
  if (operation.request.inputs.empty()) refuse(operation, "needs at least one tensor");
  operation.spec.on_gpu = operation.gpu.device != kCpuDevice;
  if (traits.rows_may_differ) {
    check_rows(operation, members.size());
    return;
  }
  for (const Buffer& input : operation.request.inputs) {
    operation.spec.tensors.push_back({input.dtype, input.shape});
    if (traits.by_rows && input.shape.empty()) {
      refuse(operation, std::string(name_of(kind)) + " works along the first dimension, but the tensor is a scalar");
    }
  }
  if (traits.reduces) check_reduce_op(operation);
  if (kind == OpKind::kBroadcast && std::find(members.begin(), members.end(), operation.spec.root) == members.end()) {
    refuse(operation, "root rank " + std::to_string(operation.spec.root) + " is not a member of the process set");
  }
  if (traits.fills_outputs) check_outputs(operation, members, operation.state.set_rank);
}

int common_device(const Operation& operation) {
  const Buffers& inputs = operation.request.inputs;
  const Buffers& outputs = operation.request.outputs;
  if (inputs.empty() && outputs.empty()) return kCpuDevice;
  const int first = (inputs.empty() ? outputs : inputs).front().device;
  const auto place = [](int device) {
    return device == kCpuDevice ? std::string("the CPU") : "cuda:" + std::to_string(device);
  };
  if (traits_of(operation.spec.kind).is_transfer && first != kCpuDevice) {
    refuse_unsupported(operation, "send and recv take tensors on the CPU, but this one is on " + place(first) +
                                      ". Copy it with .cpu() before");
  }
  for (const auto* buffers : {&inputs, &outputs}) {
    for (const Buffer& buffer : *buffers) {
      if (buffer.device == first) continue;
      refuse(operation, "all tensors of one operation must be on one device, but some are on " + place(first) +
                            " and others on " + place(buffer.device) +
                            ". Move them, or submit those of each device by themselves");
    }
  }
  return first;
}

void check_received(const RequestSpec& spec, const std::string& from) {
  const auto refuse = [&](const std::string& what) {
    throw Error(ErrorKind::kInternal, from + " sent a request that no rank can submit: " + spec.name + " " + what +
                                          ". It runs another version, or its memory is damaged");
  };
  if ((spec.name == kJoinName) != (spec.kind == OpKind::kJoin)) refuse("takes the name of join");
  const OpTraits traits = traits_of(spec.kind);
  if (!traits.moves_data) {
    if (!spec.tensors.empty() || spec.on_gpu) refuse("has tensors, but moves no data");
    return;
  }
  if (spec.tensors.empty()) refuse("has no tensor");
  if (traits.is_transfer && (spec.tensors.size() != 1 || spec.on_gpu || spec.weighted || spec.cacheable)) {
    refuse("is not between two ranks");
  }
  if (spec.kind == OpKind::kAlltoall && spec.tensors.size() != 1) refuse("has more than one tensor");
  const bool sums = spec.reduce_op == ReduceOp::kSum || spec.reduce_op == ReduceOp::kAverage;
  if (spec.quantization != Quantization::kNone && (spec.kind != OpKind::kAllreduce || !sums || spec.on_gpu)) {
    refuse("is quantized, but no sum on the CPU");
  }
  const bool needs_floats = spec.weighted || spec.reduce_op == ReduceOp::kAdasum;
  int64_t total = 0;
  for (const TensorSpec& tensor : spec.tensors) {
    if (traits.by_rows && tensor.shape.empty()) refuse("is a scalar without rows");
    const std::optional<int64_t> bytes = bytes_of(tensor);
    total += bytes.value_or(0);
    if (!bytes || total > kMostBytes) refuse("has the impossible shape " + to_string(tensor.shape));
    if (needs_floats && !is_floating(tensor.dtype)) refuse("is not of a floating type");
  }
}

bool is_total_weight(double sum) { return sum > 0.0 && std::isfinite(sum); }

bool are_rows(const std::vector<int64_t>& rows, int64_t bytes_per_row) {
  int64_t total = 0;
  return std::all_of(rows.begin(), rows.end(), [&](int64_t count) {
    int64_t bytes = 0;
    return count >= 0 && !__builtin_mul_overflow(count, std::max<int64_t>(bytes_per_row, 1), &bytes) &&
           !__builtin_add_overflow(total, bytes, &total) && total <= kMostBytes;
  });
}

}  // namespace hvd
