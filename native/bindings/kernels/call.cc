#include "bindings/kernels/call.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>

#include "plan/plan.h"

namespace hvd::kernels {
namespace {

// How long a framework's thread waits if nothing else can happen meanwhile. Not for ever: the other ranks may wait for
// what this very thread has yet to run.
constexpr int64_t kBriefWaitUs = 5000;

int64_t count_of(const HvdBuffer& buffer) {
  int64_t count = 1;
  for (int32_t i = 0; i < buffer.num_dims; ++i) count *= buffer.shape[i];
  return count;
}

bool has_reduction(const Call& call) {
  return !traits_of(call.kind).sums_only || call.reduce_op == ReduceOp::kSum || call.reduce_op == ReduceOp::kAverage;
}

}  // namespace

std::string prefix_of(const Call& call) { return (call.grouped ? "grouped_" : "") + std::string(name_of(call.kind)); }

Failure not_initialized(int64_t job) {
  return {Trouble::kNotInitialized, job == 0
                                        ? "Horovod has not been initialized; call hvd.init() first"
                                        : "job " + std::to_string(job) + " of this process has ended, or never began"};
}

Run::~Run() {
  if (operation_ != nullptr) interface_->release_operation(operation_);
}

void Run::start() {
  if (!find_members() || !hold_inputs(splits_) || !allocate_outputs()) return end();
  if (!prepare()) return end();
  submit();
}

bool Run::find_members() {
  job_ = jobs().find(call_.job);
  if (job_ == nullptr) {
    fail(not_initialized(call_.job));
    return false;
  }
  interface_ = job_->interface;
  auto members = job_->find_process_set(call_.process_set);
  if (!members) {
    fail({Trouble::kUnknownProcessSet,
          who() + ": process set " + std::to_string(call_.process_set) + " is not registered"});
    return false;
  }
  members_ = std::move(*members);
  if (has_reduction(call_)) return true;
  fail({Trouble::kUnsupported, who() + ": " + name_of(call_.kind) + " supports Sum and Average only"});
  return false;
}

bool Run::allocate_outputs() {
  const OpTraits traits = traits_of(call_.kind);
  if (!traits.fills_outputs) return true;
  const std::vector<HvdBuffer> given = inputs();
  for (size_t i = 0; i < given.size(); ++i) {
    const auto index = static_cast<int>(i);
    if (!traits.scatters) {
      if (!allocate_like_input(index)) return false;
      continue;
    }
    std::vector<int64_t> shape(given[i].shape, given[i].shape + given[i].num_dims);
    if (shape.empty()) continue;  // the engine refuses it
    const int size = static_cast<int>(members_.ranks.size());
    shape.front() = share_of(shape.front(), std::max(members_.set_rank, 0), size).size();  // the engine refuses others
    if (!allocate(index, shape)) return false;
  }
  return true;
}

// Takes what belongs to the error feedback from the front of both lists, and makes the residuals those of this rank.
bool Run::take_residuals(std::vector<HvdBuffer>& given, std::vector<HvdBuffer>& taken,
                         std::vector<HvdBuffer>& residuals) {
  const auto count = static_cast<size_t>(call_.num_residuals);
  const auto is_of = [](const HvdBuffer& buffer, DType dtype) { return buffer.dtype == static_cast<int32_t>(dtype); };
  bool fits = given.size() > 2 * count && taken.size() == given.size() && is_of(given[count], DType::kInt32) &&
              count_of(given[count]) == 1;
  for (size_t i = 0; fits && i < count; ++i) {
    fits = is_of(given[i], DType::kFloat32) && count_of(given[i]) == count_of(given[count + 1 + i]);
  }
  if (!fits) {
    fail({Trouble::kBadArgument,
          who() + ": error feedback takes a rank in int32, and for each tensor float32 of as many elements"});
    return false;
  }
  const bool is_own = *static_cast<const int32_t*>(given[count].data) == job_->rank;
  for (size_t i = 0; i < count; ++i) {
    const size_t bytes = static_cast<size_t>(count_of(given[i])) * sizeof(float);
    residuals.push_back(taken[i]);
    if (bytes == 0) continue;
    if (!is_own) {
      std::memset(taken[i].data, 0, bytes);
    } else if (taken[i].data != given[i].data) {
      std::memcpy(taken[i].data, given[i].data, bytes);
    }
  }
  *static_cast<int32_t*>(taken[count].data) = job_->rank;
  const auto last = static_cast<std::ptrdiff_t>(count) + 1;
  given.erase(given.begin(), given.begin() + last);
  taken.erase(taken.begin(), taken.begin() + last);
  for (size_t i = count; i < given.size(); ++i) {  // what ranks compare of a tree, which has no values
    residuals.push_back(given[i]);
    residuals.back().dtype = static_cast<int32_t>(DType::kFloat32);
  }
  return true;
}

bool Run::prepare() {
  std::vector<HvdBuffer> given = inputs();
  // Frameworks know sizes of other results too late, or only those of their own program.
  std::vector<HvdBuffer> taken = traits_of(call_.kind).fills_outputs ? outputs() : std::vector<HvdBuffer>{};
  std::vector<HvdBuffer> residuals;
  if (call_.num_residuals > 0 && !take_residuals(given, taken, residuals)) return false;
  const std::string prefix = prefix_of(call_);
  const std::string name = call_.name + name_suffix();
  static constexpr int64_t kNone = 0;  // an empty list of splits is something else than no list
  HvdRequest request = {};
  request.kind = static_cast<int32_t>(call_.kind);
  request.prefix = prefix.c_str();
  request.name = name.c_str();
  request.process_set = members_.engine_id;
  request.inputs = given.data();
  request.num_inputs = static_cast<int32_t>(given.size());
  request.outputs = taken.data();
  request.num_outputs = static_cast<int32_t>(taken.size());
  request.reduce_op = static_cast<int32_t>(call_.reduce_op);
  request.quantization = call_.quantization;
  request.residuals = residuals.data();
  request.num_residuals = static_cast<int32_t>(residuals.size());
  request.prescale = call_.prescale;
  request.postscale = call_.postscale;
  request.root = call_.root;
  if (call_.kind == OpKind::kAlltoall && !call_.equal_splits) {
    request.splits = splits_.empty() ? &kNone : splits_.data();
    request.num_splits = static_cast<int32_t>(splits_.size());
  }
  request.weighted = call_.weight.has_value() ? 1 : 0;
  request.weight = call_.weight.value_or(1.0);
  request.priority = call_.priority;
  request.call_site = call_.call_site.c_str();
  request.waits = waits_ == Waits::kNot ? 0 : 1;
  request.context = this;
  request.done = [](void* context) {
    auto* self = static_cast<Run*>(context);
    const std::shared_ptr<Run> kept = std::move(self->kept_);
    if (self->waits_ != Waits::kUntilDone) self->give_results();
  };
  operation_ = interface_->prepare(&request);
  return true;
}

void Run::submit() {
  const std::shared_ptr<Run> kept = shared_from_this();  // the callback drops what the engine keeps
  kept_ = kept;
  const std::shared_ptr<const Job> job = std::move(job_);  // the callback must not drop the last reference to an engine
  const Waits waits = waits_;
  if (interface_->submit(job->engine, operation_) == 0) {
    kept_.reset();
    return give_results();
  }
  if (waits != Waits::kUntilDone) {  // the callback ends it, or has done so; then nothing of the kernel is left
    if (waits == Waits::kBriefly) interface_->wait_once(job->engine, operation_, kBriefWaitUs);
    return;
  }
  if (interface_->wait(job->engine, operation_) != 0) return give_results();
  fail({Trouble::kInterrupted, who() + " was interrupted by a signal"});
  leave();
}

// Of the ended operation, or its error.
void Run::give_results() {
  const int kind = interface_->error_kind(operation_);
  if (kind >= 0) {
    fail({Trouble::kEngine, interface_->error_text(operation_), static_cast<ErrorKind>(kind)});
    return end();
  }
  const int32_t num_results = interface_->num_results(operation_);
  for (int32_t i = 0; i < num_results; ++i) {
    HvdBuffer memory = {};
    void* reference = interface_->take_result(operation_, i, &memory);
    give_result(i, memory, reference);
  }
  if (call_.kind == OpKind::kJoin) give_integers(0, {interface_->last_joined(operation_)}, true);
  if (call_.kind == OpKind::kAlltoall) {
    int32_t count = 0;
    const int64_t* rows = interface_->received_splits(operation_, &count);
    give_integers(1, std::vector<int64_t>(rows, rows + count), false);
  }
  end();
}

std::string Run::who() const { return prefix_of(call_) + (call_.name.empty() ? "" : "." + call_.name); }

}  // namespace hvd::kernels
