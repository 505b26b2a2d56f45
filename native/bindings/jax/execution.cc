#include "bindings/jax/execution.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "base/dtype.h"
#include "bindings/jax/completers.h"

namespace hvd::jax {
namespace {

constexpr std::pair<int32_t, DType> kTypes[] = {
    {1, DType::kBool},     {2, DType::kInt8},     {3, DType::kInt16},     {4, DType::kInt32},  {5, DType::kInt64},
    {6, DType::kUInt8},    {7, DType::kUInt16},   {8, DType::kUInt32},    {9, DType::kUInt64}, {10, DType::kFloat16},
    {11, DType::kFloat32}, {12, DType::kFloat64}, {16, DType::kBFloat16},
};
constexpr int32_t kUnknown = -1;

HvdBuffer buffer_of(const XlaBuffer& given) {
  HvdBuffer buffer = {};
  buffer.data = given.data;
  buffer.dtype = kUnknown;
  for (const auto& [type, dtype] : kTypes) {
    if (type == given.dtype) buffer.dtype = static_cast<int32_t>(dtype);
  }
  buffer.num_dims = static_cast<int32_t>(given.num_dims);
  buffer.shape = given.dims;
  return buffer;
}

// Each list ends with what keeps operations in order, which holds nothing.
std::vector<HvdBuffer> buffers_of(const XlaBuffers& given) {
  std::vector<HvdBuffer> buffers;
  for (int64_t i = 0; i + 1 < given.size; ++i) buffers.push_back(buffer_of(*given.buffers[i]));
  return buffers;
}

std::vector<int64_t> shape_of(const HvdBuffer& buffer) { return {buffer.shape, buffer.shape + buffer.num_dims}; }

std::string text_of(const std::vector<int64_t>& shape) {
  std::string text;
  for (const int64_t extent : shape) text += (text.empty() ? "" : ", ") + std::to_string(extent);
  return "[" + text + "]";
}

size_t num_bytes_of(const HvdBuffer& buffer) {
  size_t count = 1;
  for (int32_t i = 0; i < buffer.num_dims; ++i) count *= static_cast<size_t>(buffer.shape[i]);
  return count * size_of(static_cast<DType>(buffer.dtype));
}

std::pair<XlaCode, const char*> class_of_kind(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kUsage:
      return {kXlaInvalidArgument, "UsageError"};
    case ErrorKind::kDuplicateName:
      return {kXlaInvalidArgument, "DuplicateNameError"};
    case ErrorKind::kUnsupported:
      return {kXlaInvalidArgument, "UnsupportedError"};
    case ErrorKind::kMismatch:
      return {kXlaFailedPrecondition, "MismatchError"};
    case ErrorKind::kPeerLost:
      return {kXlaUnavailable, "PeerLostError"};
    case ErrorKind::kShutDown:
      return {kXlaUnavailable, "ShutDownError"};
    case ErrorKind::kStalled:
      return {kXlaUnavailable, "StalledError"};
    case ErrorKind::kInternal:
      return {kXlaInternal, "HorovodInternalError"};
  }
  return {kXlaInternal, "HorovodInternalError"};
}

std::pair<XlaCode, const char*> class_of(const kernels::Failure& failure) {
  switch (failure.trouble) {
    case kernels::Trouble::kNotInitialized:
      return {kXlaFailedPrecondition, "NotInitializedError"};
    case kernels::Trouble::kUnknownProcessSet:
    case kernels::Trouble::kNotMember:
    case kernels::Trouble::kBadArgument:
      return class_of_kind(ErrorKind::kUsage);
    case kernels::Trouble::kUnsupported:
      return class_of_kind(ErrorKind::kUnsupported);
    case kernels::Trouble::kInterrupted:
      return class_of_kind(ErrorKind::kShutDown);
    case kernels::Trouble::kEngine:
      return class_of_kind(failure.kind);
  }
  return class_of_kind(ErrorKind::kInternal);
}

std::atomic<int64_t> started = 0;
std::atomic<int64_t> ended = 0;

}  // namespace

int64_t num_started() { return started; }
int64_t num_ended() { return ended; }

Execution::~Execution() { ++ended; }

// The tensors stay where they are until the end.
Execution::Execution(Attributes&& given, const XlaCallFrame& frame)
    : HeldAttributes{std::move(given)},
      Run(attributes.call),
      api_(frame.api),
      inputs_(buffers_of(frame.arguments)),
      outputs_(buffers_of(frame.results)) {
  ++started;
  if (attributes.is_weighted && !inputs_.empty()) {
    const HvdBuffer& weight = inputs_.back();
    weight_ = weight.dtype == static_cast<int32_t>(DType::kFloat64) ? *static_cast<const double*>(weight.data)
                                                                    : *static_cast<const float*>(weight.data);
    attributes.call.weight = weight_;
    inputs_.pop_back();
  }
  has_unknown_dtype_ =
      std::any_of(inputs_.begin(), inputs_.end(), [](const HvdBuffer& each) { return each.dtype == kUnknown; });
}

bool Execution::refuse(const std::string& text) {
  fail({kernels::Trouble::kBadArgument, who() + ": " + text});
  return false;
}

bool Execution::hold_inputs(std::vector<int64_t>& splits) {
  if (has_unknown_dtype_) return refuse("an array is of a dtype that cannot be sent");
  const auto size = static_cast<int64_t>(members().ranks.size());
  if (attributes.size != 0 && attributes.size != size) {
    return refuse("the program was compiled for a process set of " + std::to_string(attributes.size) +
                  " ranks, which has " + std::to_string(size) + " now; trace it again (jax.clear_caches())");
  }
  if (attributes.table.empty()) return true;
  if (static_cast<int64_t>(attributes.table.size()) != size * size) return refuse("splits is no square table");
  const auto row = attributes.table.begin() + std::max(members().set_rank, 0) * size;
  splits.assign(row, row + size);
  return true;
}

bool Execution::allocate(int index, const std::vector<int64_t>& shape) {
  const std::vector<int64_t> compiled = shape_of(outputs_[static_cast<size_t>(index)]);
  if (shape == compiled) return true;
  return refuse("the program was compiled for a result of shape " + text_of(compiled) + " instead of " +
                text_of(shape) + "; trace it again (jax.clear_caches())");
}

void Execution::fail(const kernels::Failure& failure) {
  const auto [code, name] = class_of(failure);
  code_ = code;
  text_ = std::string("horovod.errors.") + name + ": " + failure.text;
}

// Memory that the engine allocated.
void Execution::copy_results() {
  for (const Result& result : results_) {
    const HvdBuffer& output = outputs_[static_cast<size_t>(result.index)];
    const auto shape = shape_of(result.memory);
    if (!text_.empty()) {
      // the first error counts
    } else if (shape != shape_of(output)) {
      static_cast<void>(refuse("what arrived has the shape " + text_of(shape) + ", but the program was compiled for " +
                               text_of(shape_of(output)) +
                               ": within jit all ranks give equal numbers of rows, or sizes="));
    } else if (const size_t num_bytes = num_bytes_of(output); num_bytes > 0) {
      std::memcpy(output.data, result.memory.data, num_bytes);
    }
    interface().release_memory(result.reference);
  }
  results_.clear();
}

XlaError* Execution::error() const {
  XlaErrorCreateArgs args = {sizeof(args), nullptr, text_.c_str(), code_};
  return api_->error_create(&args);
}

void Execution::end() {
  const std::lock_guard lock(mutex_);
  has_ended_ = true;
  if (future_ == nullptr) return;
  completers().add(
      [self = std::static_pointer_cast<Execution>(shared_from_this())]() mutable { complete(std::move(self)); });
}

XlaError* Execution::outcome(XlaCallFrame& frame) {
  {
    const std::lock_guard lock(mutex_);
    if (!has_ended_) {
      XlaFutureCreateArgs args = {sizeof(args), nullptr, nullptr};
      XlaError* refused = api_->future_create(&args);
      if (refused != nullptr) return refused;
      future_ = frame.future = args.future;
      return nullptr;
    }
  }
  copy_results();
  return text_.empty() ? nullptr : error();
}

// The rest of the program may run in here.
void Execution::complete(std::shared_ptr<Execution> execution) {
  execution->copy_results();
  const XlaApi* api = execution->api_;
  XlaFuture* future = execution->future_;
  XlaError* error = execution->text_.empty() ? nullptr : execution->error();
  execution.reset();
  if (error != nullptr) {
    XlaFutureSetErrorArgs args = {sizeof(args), nullptr, future, error};
    static_cast<void>(api->future_set_error(&args));
    return;
  }
  XlaFutureSetAvailableArgs args = {sizeof(args), nullptr, future};
  static_cast<void>(api->future_set_available(&args));
}

}  // namespace hvd::jax
