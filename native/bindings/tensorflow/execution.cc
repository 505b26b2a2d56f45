#include "bindings/tensorflow/execution.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace hvd::tensorflow {
namespace {

StatusCode code_of_kind(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kUsage:
    case ErrorKind::kDuplicateName:
    case ErrorKind::kUnsupported:
      return kInvalidArgument;
    case ErrorKind::kMismatch:
      return kFailedPrecondition;
    case ErrorKind::kPeerLost:
    case ErrorKind::kShutDown:
    case ErrorKind::kStalled:
    case ErrorKind::kInternal:
      return kUnknown;
  }
  return kUnknown;
}

// More iterations of a loop than TensorFlow runs at once, unless it is told to; names are to be few.
constexpr int64_t kNumLoopNames = 64;

std::vector<HvdBuffer> buffers_of(const std::vector<HeldTensor>& tensors) {
  std::vector<HvdBuffer> buffers;
  buffers.reserve(tensors.size());
  for (const HeldTensor& tensor : tensors) buffers.push_back(tensor.buffer());
  return buffers;
}

}  // namespace

StatusCode code_of(const kernels::Failure& failure) {
  switch (failure.trouble) {
    case kernels::Trouble::kNotInitialized:
      return kFailedPrecondition;
    case kernels::Trouble::kUnknownProcessSet:
    case kernels::Trouble::kNotMember:
    case kernels::Trouble::kBadArgument:
      return kInvalidArgument;
    case kernels::Trouble::kUnsupported:
      return kAborted;
    case kernels::Trouble::kInterrupted:
      return kCancelled;
    case kernels::Trouble::kEngine:
      return code_of_kind(failure.kind);
  }
  return kUnknown;
}

bool Execution::succeeded(Status& status) {
  if (status.ok()) return true;
  tf.OpKernelContext_Failure(context_, status.get());
  return false;
}

bool Execution::hold_inputs(std::vector<int64_t>& splits) {
  Status status;
  const int num_inputs = tf.NumInputs(context_);
  for (int i = 0; i < num_inputs; ++i) {
    TF_Tensor* tensor = nullptr;
    tf.GetInput(context_, i, &tensor, status.get());
    if (!succeeded(status)) return false;
    inputs_.emplace_back(tensor);
  }
  return call().kind != OpKind::kAlltoall || read_splits(splits);
}

bool Execution::read_splits(std::vector<int64_t>& splits) {
  const HeldTensor given = std::move(inputs_.back());
  inputs_.pop_back();
  if (call().equal_splits) return true;
  if (given.shape.size() != 1) {
    fail({kernels::Trouble::kBadArgument,
          who() + ": splits has " + std::to_string(given.shape.size()) + " dimensions instead of one"});
    return false;
  }
  const auto* rows = static_cast<const int32_t*>(tf.TensorData(given.tensor.get()));
  splits.assign(rows, rows + given.shape.front());
  return true;
}

// In place if nobody else needs the input: that saves memory, and faulting its pages in.
bool Execution::allocate_like_input(int index) {
  HeldTensor& input = inputs_[static_cast<size_t>(index)];
  const std::vector<int64_t> shape = input.shape;
  input.tensor.reset();  // a second reference would look like somebody else's
  Status status;
  int forwarded = -1;
  TF_Tensor* output = tf.ForwardInputOrAllocateOutput(context_, &index, 1, index, shape.data(),
                                                      static_cast<int>(shape.size()), &forwarded, status.get());
  TF_Tensor* again = nullptr;
  if (status.ok()) tf.GetInput(context_, index, &again, status.get());
  if (output != nullptr) outputs_.emplace_back(output);
  if (!succeeded(status)) return false;
  input.tensor.reset(again);
  return true;
}

bool Execution::allocate(int index, const std::vector<int64_t>& shape) {
  const DataType type = tf.TensorType(inputs_[static_cast<size_t>(index)].tensor.get());
  size_t bytes = size_of(static_cast<DType>(dtype_of(type)));
  for (const int64_t extent : shape) bytes *= static_cast<size_t>(extent);
  Status status;
  TF_Tensor* output =
      tf.AllocateOutput(context_, index, type, shape.data(), static_cast<int>(shape.size()), bytes, status.get());
  if (!succeeded(status)) return false;
  outputs_.emplace_back(output);
  return true;
}

std::vector<HvdBuffer> Execution::inputs() const { return buffers_of(inputs_); }
std::vector<HvdBuffer> Execution::outputs() const { return buffers_of(outputs_); }

// Several iterations of a loop may be in flight at once.
std::string Execution::name_suffix() const {
  const int64_t iteration = call().waits == kernels::Waits::kUntilDone ? 0 : tf.GetIterId(context_);
  return iteration > 0 ? ".iteration" + std::to_string(iteration % kNumLoopNames) : "";
}

void Execution::give_result(int index, const HvdBuffer& memory, void* reference) {
  const TensorPtr tensor = adopt(interface(), memory, reference);
  Status status;
  tf.SetOutput(context_, index, tensor.get(), status.get());
  static_cast<void>(succeeded(status));
}

void Execution::give_integers(int index, const std::vector<int64_t>& values, bool scalar) {
  const auto count = static_cast<int64_t>(values.size());
  const auto largest = std::max_element(values.begin(), values.end());
  if (largest != values.end() && *largest > std::numeric_limits<int32_t>::max()) {
    return fail({kernels::Trouble::kBadArgument,
                 who() + ": received " + std::to_string(*largest) +
                     " rows from one rank, which received_splits cannot say in int32: send fewer rows at once"});
  }
  Status status;
  const TensorPtr output(tf.AllocateOutput(context_, index, kTypeInt32, &count, scalar ? 0 : 1,
                                           values.size() * sizeof(int32_t), status.get()));
  if (!succeeded(status)) return;
  auto* data = static_cast<int32_t*>(tf.TensorData(output.get()));
  std::transform(values.begin(), values.end(), data, [](int64_t value) { return static_cast<int32_t>(value); });
}

void Execution::fail(const kernels::Failure& failure) {
  Status status;
  status.set(code_of(failure), failure.text);
  tf.OpKernelContext_Failure(context_, status.get());
}

// The tensors first: what comes next in the graph may work in place only if nobody else holds them.
void Execution::end() {
  inputs_.clear();
  outputs_.clear();
  leave();
}

void Execution::leave() {
  const DoneCallback done = done_;
  done();
}

}  // namespace hvd::tensorflow
