#include "bindings/tensorflow/attributes.h"

#include <charconv>

namespace hvd::tensorflow {
namespace {

bool flag(TF_OpKernelConstruction* construction, const char* name, Status& status) {
  unsigned char value = 0;
  if (status.ok()) tf.OpKernelConstruction_GetAttrBool(construction, name, &value, status.get());
  return value != 0;
}

std::string text(TF_OpKernelConstruction* construction, const char* name, Status& status) {
  int32_t list_size = 0;
  int32_t size = 0;
  if (status.ok()) tf.OpKernelConstruction_GetAttrSize(construction, name, &list_size, &size, status.get());
  if (!status.ok() || size <= 0) return {};
  std::string value(static_cast<size_t>(size), '\0');
  tf.OpKernelConstruction_GetAttrString(construction, name, value.data(), value.size(), status.get());
  return value;
}

// TensorFlow's floating-point attributes are float32; factors must be exact in float64, so they are written out.
double factor(TF_OpKernelConstruction* construction, const char* name, Status& status) {
  const std::string written = text(construction, name, status);
  if (!status.ok()) return 1.0;
  double value = 1.0;
  const char* end = written.data() + written.size();
  const auto [rest, error] = std::from_chars(written.data(), end, value);
  if (error != std::errc() || rest != end) {
    status.set(kInvalidArgument, std::string(name) + "=\"" + written + "\" is no number");
  }
  return value;
}

}  // namespace

int64_t integer_attribute(TF_OpKernelConstruction* construction, const char* name, Status& status) {
  int64_t value = 0;
  if (status.ok()) tf.OpKernelConstruction_GetAttrInt64(construction, name, &value, status.get());
  return value;
}

bool read_attributes(TF_OpKernelConstruction* construction, OpKind kind, bool grouped, kernels::Call& call) {
  Status status;
  call.kind = kind;
  call.grouped = grouped;
  call.job = integer_attribute(construction, "job", status);
  call.process_set = integer_attribute(construction, "process_set_id", status);
  const bool eager = flag(construction, "eager", status);
  if (flag(construction, "waits_briefly", status)) call.waits = kernels::Waits::kBriefly;
  if (eager) call.waits = kernels::Waits::kUntilDone;
  call.call_site = text(construction, "call_site", status);
  call.name = text(construction, "tensor_name", status);
  if (!eager) {
    const StringView node = tf.OpKernelConstruction_GetName(construction);
    call.name = std::string(node.data, node.size);
    const size_t slash = call.name.rfind('/');
    if (flag(construction, "ignore_name_scope", status) && slash != std::string::npos) call.name.erase(0, slash + 1);
  }
  if (traits_of(kind).reduces) {
    call.reduce_op = static_cast<ReduceOp>(integer_attribute(construction, "reduce_op", status));
    call.quantization = static_cast<int32_t>(integer_attribute(construction, "quantization", status));
    call.num_residuals = integer_attribute(construction, "num_residuals", status);
    if (call.num_residuals == 1) call.grouped = false;  // named like the same allreduce without errors
    call.prescale = factor(construction, "prescale_factor", status);
    call.postscale = factor(construction, "postscale_factor", status);
  }
  if (kind == OpKind::kBroadcast) call.root = static_cast<int>(integer_attribute(construction, "root_rank", status));
  if (kind == OpKind::kAlltoall) call.equal_splits = flag(construction, "equal_splits", status);
  if (!status.ok()) tf.OpKernelConstruction_Failure(construction, status.get());
  return status.ok();
}

}  // namespace hvd::tensorflow
