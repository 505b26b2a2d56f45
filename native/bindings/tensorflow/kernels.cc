#include "bindings/tensorflow/kernels.h"

#include <memory>
#include <optional>

#include "bindings/tensorflow/attributes.h"
#include "bindings/tensorflow/done_callback.h"
#include "bindings/tensorflow/execution.h"
#include "bindings/tensorflow/job.h"
#include "bindings/tensorflow/tensors.h"
#include "bindings/tensorflow/tf_interface.h"

namespace hvd::tensorflow {
namespace {

template <OpKind kKind, bool kGrouped>
void* create(TF_OpKernelConstruction* construction) {
  auto attributes = std::make_unique<Attributes>();
  if (!read_attributes(construction, kKind, kGrouped, *attributes)) return nullptr;
  return attributes.release();
}

void compute(void* kernel, TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* done) {
  std::make_shared<Execution>(*static_cast<const Attributes*>(kernel), context, DoneCallback(done))->start();
}

void destroy(void* kernel) { delete static_cast<Attributes*>(kernel); }

template <OpKind kKind, bool kGrouped = false>
void register_collective(const char* op) {
  Status status;
  tf.RegisterKernelBuilder(op, tf.NewAsyncKernelBuilder(op, "CPU", &create<kKind, kGrouped>, &compute, &destroy),
                           status.get());
  if (!status.ok()) note_problem(std::string(op) + ": " + tf.Message(status.get()));
}

// ---- Numbers of the job

enum class Question : uint8_t { kRank, kLocalRank, kLocalSize, kSize, kIncluded };

constexpr bool is_about_a_set(Question question) {
  return question == Question::kRank || question == Question::kSize || question == Question::kIncluded;
}

// Numbers that stand for answers in HorovodProcessSetIncluded.
constexpr int kNotInitialized = -1;
constexpr int kUnknownSet = -3;

template <Question kQuestion>
void* create_question(TF_OpKernelConstruction* construction) {
  auto process_set = std::make_unique<int64_t>(0);
  if constexpr (is_about_a_set(kQuestion)) {
    Status status;
    *process_set = integer_attribute(construction, "process_set_id", status);
    if (!status.ok()) tf.OpKernelConstruction_Failure(construction, status.get());
  }
  return process_set.release();
}

void destroy_question(void* kernel) { delete static_cast<int64_t*>(kernel); }

void refuse(TF_OpKernelContext* context, StatusCode code, const std::string& message) {
  Status status;
  status.set(code, message);
  tf.OpKernelContext_Failure(context, status.get());
}

int included(int64_t process_set) {
  if (current_job() == nullptr) return kNotInitialized;
  const auto members = find_process_set(process_set);
  if (!members) return kUnknownSet;
  return members->set_rank >= 0 ? 1 : 0;
}

// None, and the failure reported, if there is no answer.
std::optional<int> answer(Question question, int64_t process_set, TF_OpKernelContext* context) {
  if (question == Question::kIncluded) return included(process_set);
  const auto job = current_job();
  if (job == nullptr) {
    refuse(context, kFailedPrecondition, "Horovod has not been initialized; call hvd.init() first");
    return std::nullopt;
  }
  if (question == Question::kLocalRank) return job->local_rank;
  if (question == Question::kLocalSize) return job->local_size;
  const auto members = find_process_set(process_set);
  const std::string set = "process set " + std::to_string(process_set);
  if (!members) {
    refuse(context, kInvalidArgument, set + " is not registered");
    return std::nullopt;
  }
  if (question == Question::kSize) return static_cast<int>(members->ranks.size());
  if (members->set_rank >= 0) return members->set_rank;
  refuse(context, kInvalidArgument, "rank " + std::to_string(job->rank) + " does not belong to " + set);
  return std::nullopt;
}

template <Question kQuestion>
void compute_answer(void* kernel, TF_OpKernelContext* context) {
  const std::optional<int> number = answer(kQuestion, *static_cast<const int64_t*>(kernel), context);
  if (!number) return;
  Status status;
  const TensorPtr output(tf.AllocateOutput(context, 0, kTypeInt32, nullptr, 0, sizeof(int32_t), status.get()));
  if (!status.ok()) return tf.OpKernelContext_Failure(context, status.get());
  *static_cast<int32_t*>(tf.TensorData(output.get())) = *number;
}

template <Question kQuestion>
void register_question(const char* op) {
  Status status;
  tf.RegisterKernelBuilder(
      op, tf.NewKernelBuilder(op, "CPU", &create_question<kQuestion>, &compute_answer<kQuestion>, &destroy_question),
      status.get());
  if (!status.ok()) note_problem(std::string(op) + ": " + tf.Message(status.get()));
}

}  // namespace

void register_kernels() {
  register_collective<OpKind::kAllreduce>("HorovodAllreduce");
  register_collective<OpKind::kAllreduce, true>("HorovodGroupedAllreduce");
  register_collective<OpKind::kReducescatter>("HorovodReducescatter");
  register_collective<OpKind::kReducescatter, true>("HorovodGroupedReducescatter");
  register_collective<OpKind::kAllgather>("HorovodAllgather");
  register_collective<OpKind::kAllgather, true>("HorovodGroupedAllgather");
  register_collective<OpKind::kBroadcast>("HorovodBroadcast");
  register_collective<OpKind::kBroadcast, true>("HorovodGroupedBroadcast");
  register_collective<OpKind::kAlltoall>("HorovodAlltoall");
  register_collective<OpKind::kBarrier>("HorovodBarrier");
  register_collective<OpKind::kJoin>("HorovodJoin");
  register_question<Question::kRank>("HorovodRank");
  register_question<Question::kLocalRank>("HorovodLocalRank");
  register_question<Question::kLocalSize>("HorovodLocalSize");
  register_question<Question::kSize>("HorovodSize");
  register_question<Question::kIncluded>("HorovodProcessSetIncluded");
}

}  // namespace hvd::tensorflow
