#include "bindings/tensorflow/execution.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace hvd::tensorflow {
namespace {

StatusCode code_of(int error_kind) {
  switch (static_cast<ErrorKind>(error_kind)) {
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

// How long a thread of TensorFlow's waits if nothing else of the step can happen meanwhile. Not for ever: the other
// ranks may wait for what this very thread has yet to run.
constexpr int64_t kBriefWaitUs = 5000;

// More iterations of a loop than TensorFlow runs at once, unless it is told to; names are to be few.
constexpr int64_t kNumLoopNames = 64;

bool reduces_to_known_op(const Attributes& attributes) {
  const auto op = static_cast<ReduceOp>(attributes.reduce_op);
  return attributes.kind != OpKind::kReducescatter || op == ReduceOp::kSum || op == ReduceOp::kAverage;
}

}  // namespace

Execution::~Execution() {
  if (operation_ != nullptr) interface_->release_operation(operation_);
}

void Execution::start() {
  if (!find_members() || !hold_inputs() || !allocate_outputs()) return end();
  prepare();
  submit();
}

bool Execution::find_members() {
  job_ = current_job();
  if (job_ == nullptr) {
    fail(kFailedPrecondition, "Horovod has not been initialized; call hvd.init() first");
    return false;
  }
  interface_ = job_->interface;
  auto members = find_process_set(attributes_.process_set);
  if (!members) {
    fail(kInvalidArgument, who() + ": process set " + std::to_string(attributes_.process_set) + " is not registered");
    return false;
  }
  members_ = std::move(*members);
  if (!reduces_to_known_op(attributes_)) {
    fail(kAborted, who() + ": reducescatter supports Sum and Average only");
    return false;
  }
  return true;
}

bool Execution::hold_inputs() {
  Status status;
  const int num_inputs = tf.NumInputs(context_);
  for (int i = 0; i < num_inputs; ++i) {
    TF_Tensor* tensor = nullptr;
    tf.GetInput(context_, i, &tensor, status.get());
    if (!status.ok()) {
      fail_with(status);
      return false;
    }
    inputs_.emplace_back(tensor);
  }
  return attributes_.kind != OpKind::kAlltoall || read_splits();
}

bool Execution::read_splits() {
  const HeldTensor splits = std::move(inputs_.back());
  inputs_.pop_back();
  if (attributes_.equal_splits) return true;
  if (splits.shape.size() != 1) {
    fail(kInvalidArgument,
         who() + ": splits has " + std::to_string(splits.shape.size()) + " dimensions instead of one");
    return false;
  }
  const auto* rows = static_cast<const int32_t*>(tf.TensorData(splits.tensor.get()));
  splits_.assign(rows, rows + splits.shape.front());
  return true;
}

bool Execution::allocate_outputs() {
  const int num_inputs = static_cast<int>(inputs_.size());
  for (int i = 0; i < num_inputs; ++i) {
    switch (attributes_.kind) {
      case OpKind::kAllreduce:
      case OpKind::kBroadcast:
        if (!forward_or_allocate(i)) return false;
        break;
      case OpKind::kReducescatter:
        if (!inputs_[static_cast<size_t>(i)].shape.empty() && !allocate_rows(i)) return false;
        break;
      default:
        return true;  // the engine allocates them
    }
  }
  return true;
}

// In place if nobody else needs the input: that saves memory, and faulting its pages in.
bool Execution::forward_or_allocate(int index) {
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
  if (!status.ok()) {
    fail_with(status);
    return false;
  }
  input.tensor.reset(again);
  return true;
}

bool Execution::allocate_rows(int index) {
  const HeldTensor& input = inputs_[static_cast<size_t>(index)];
  const auto size = static_cast<int64_t>(members_.ranks.size());
  std::vector<int64_t> shape = input.shape;
  const int64_t num_rows = shape.front();
  shape.front() = num_rows / size + (members_.set_rank < num_rows % size ? 1 : 0);
  const DataType type = tf.TensorType(input.tensor.get());
  size_t bytes = size_of(static_cast<DType>(dtype_of(type)));
  for (const int64_t extent : shape) bytes *= static_cast<size_t>(extent);
  Status status;
  TF_Tensor* output =
      tf.AllocateOutput(context_, index, type, shape.data(), static_cast<int>(shape.size()), bytes, status.get());
  if (!status.ok()) {
    fail_with(status);
    return false;
  }
  outputs_.emplace_back(output);
  return true;
}

void Execution::prepare() {
  std::vector<HvdBuffer> inputs;
  std::vector<HvdBuffer> outputs;
  for (const HeldTensor& input : inputs_) inputs.push_back(input.buffer());
  for (const HeldTensor& output : outputs_) outputs.push_back(output.buffer());
  const std::string prefix = prefix_of(attributes_);
  const std::string name = name_of_run();
  HvdRequest request = {};
  request.kind = static_cast<int32_t>(attributes_.kind);
  request.prefix = prefix.c_str();
  request.name = name.c_str();
  request.process_set = members_.engine_id;
  request.inputs = inputs.data();
  request.num_inputs = static_cast<int32_t>(inputs.size());
  request.outputs = outputs.data();
  request.num_outputs = static_cast<int32_t>(outputs.size());
  request.reduce_op = attributes_.reduce_op;
  request.prescale = attributes_.prescale;
  request.postscale = attributes_.postscale;
  request.root = attributes_.root;
  request.splits = attributes_.kind == OpKind::kAlltoall && !attributes_.equal_splits ? splits_.data() : nullptr;
  if (request.splits == nullptr && attributes_.kind == OpKind::kAlltoall && !attributes_.equal_splits) {
    static constexpr int64_t kNone = 0;
    request.splits = &kNone;  // an empty list is something else than no list
  }
  request.num_splits = static_cast<int32_t>(splits_.size());
  request.call_site = attributes_.call_site.c_str();
  request.waits = eager_ || attributes_.waits_briefly ? 1 : 0;
  request.context = this;
  request.done = [](void* context) {
    auto* self = static_cast<Execution*>(context);
    const std::shared_ptr<Execution> kept = std::move(self->kept_);
    if (!self->eager_) self->give_results();
  };
  operation_ = interface_->prepare(&request);
}

void Execution::submit() {
  const std::shared_ptr<Execution> kept = shared_from_this();  // the callback drops what the engine keeps
  kept_ = kept;
  const std::shared_ptr<const Job> job = std::move(job_);  // the callback must not drop the last reference to an engine
  const bool waits_briefly = attributes_.waits_briefly;
  if (interface_->submit(job->engine, operation_) == 0) {
    kept_.reset();
    return give_results();
  }
  if (!eager_) {  // the callback ends it, or has done so; then nothing of the kernel is left
    if (waits_briefly) interface_->wait_once(job->engine, operation_, kBriefWaitUs);
    return;
  }
  if (interface_->wait(job->engine, operation_) != 0) return give_results();
  fail(kCancelled, who() + " was interrupted by a signal");
  const DoneCallback done = done_;
  done();
}

// Of the ended operation, or its error.
void Execution::give_results() {
  const int kind = interface_->error_kind(operation_);
  if (kind >= 0) {
    fail(code_of(kind), interface_->error_text(operation_));
    return end();
  }
  give_owned_results();
  if (attributes_.kind == OpKind::kJoin) give_integers(0, {interface_->last_joined(operation_)}, true);
  if (attributes_.kind == OpKind::kAlltoall) {
    int32_t count = 0;
    const int64_t* rows = interface_->received_splits(operation_, &count);
    give_integers(1, std::vector<int64_t>(rows, rows + count), false);
  }
  end();
}

void Execution::give_owned_results() {
  const int32_t num_results = interface_->num_results(operation_);
  for (int32_t i = 0; i < num_results; ++i) {
    HvdBuffer memory = {};
    void* reference = interface_->take_result(operation_, i, &memory);
    const TensorPtr tensor = adopt(*interface_, memory, reference);
    Status status;
    tf.SetOutput(context_, i, tensor.get(), status.get());
    if (!status.ok()) fail_with(status);
  }
}

void Execution::give_integers(int index, const std::vector<int64_t>& values, bool scalar) {
  const auto count = static_cast<int64_t>(values.size());
  Status status;
  const TensorPtr output(tf.AllocateOutput(context_, index, kTypeInt32, &count, scalar ? 0 : 1,
                                           values.size() * sizeof(int32_t), status.get()));
  if (!status.ok()) return fail_with(status);
  auto* data = static_cast<int32_t*>(tf.TensorData(output.get()));
  std::transform(values.begin(), values.end(), data, [](int64_t value) { return static_cast<int32_t>(value); });
}

// Several iterations of a loop may be in flight at once.
std::string Execution::name_of_run() const {
  const int64_t iteration = eager_ ? 0 : tf.GetIterId(context_);
  return attributes_.name + (iteration > 0 ? ".iteration" + std::to_string(iteration % kNumLoopNames) : "");
}

std::string Execution::who() const {
  return prefix_of(attributes_) + (attributes_.name.empty() ? "" : "." + attributes_.name);
}

void Execution::fail(StatusCode code, const std::string& message) {
  Status status;
  status.set(code, message);
  fail_with(status);
}

void Execution::fail_with(Status& status) { tf.OpKernelContext_Failure(context_, status.get()); }

// The tensors first: what comes next in the graph may work in place only if nobody else holds them.
void Execution::end() {
  inputs_.clear();
  outputs_.clear();
  const DoneCallback done = done_;
  done();
}

}  // namespace hvd::tensorflow
