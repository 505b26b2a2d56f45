#include "bindings/tensorflow/kernels.h"

#include <array>
#include <memory>
#include <utility>
#include <variant>

#include "bindings/kernels/numbers.h"
#include "bindings/tensorflow/attributes.h"
#include "bindings/tensorflow/definitions.h"
#include "bindings/tensorflow/done_callback.h"
#include "bindings/tensorflow/execution.h"
#include "bindings/tensorflow/tensors.h"
#include "bindings/tensorflow/tf_interface.h"

namespace hvd::tensorflow {
namespace {

using Create = void* (*)(TF_OpKernelConstruction*);

template <OpKind kKind, bool kGrouped>
void* create(TF_OpKernelConstruction* construction) {
  auto call = std::make_unique<kernels::Call>();
  if (!read_attributes(construction, kKind, kGrouped, *call)) return nullptr;
  return call.release();
}

// TensorFlow hands nothing to a function that makes a kernel, so there is one for each kind.
template <size_t... kNumbers>
Create creator_of(Performs performs, std::index_sequence<kNumbers...> /*numbers*/) {
  static constexpr std::array<Create, sizeof...(kNumbers)> kSingle{&create<static_cast<OpKind>(kNumbers), false>...};
  static constexpr std::array<Create, sizeof...(kNumbers)> kGrouped{&create<static_cast<OpKind>(kNumbers), true>...};
  return (performs.grouped ? kGrouped : kSingle).at(static_cast<size_t>(performs.kind));
}

void compute(void* kernel, TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* done) {
  const auto execution =
      std::make_shared<Execution>(*static_cast<const kernels::Call*>(kernel), context, DoneCallback(done));
  execution->start();
}

void destroy(void* kernel) { delete static_cast<kernels::Call*>(kernel); }

void register_builder(const char* op, TF_KernelBuilder* builder) {
  Status status;
  tf.RegisterKernelBuilder(op, builder, status.get());
  if (!status.ok()) note_problem(std::string(op) + ": " + tf.Message(status.get()));
}

void register_collective(const char* op, Performs performs) {
  const Create create = creator_of(performs, std::make_index_sequence<kNumOpKinds>());
  register_builder(op, tf.NewAsyncKernelBuilder(op, "CPU", create, &compute, &destroy));
}

// ---- Numbers of the job

using kernels::Question;

struct Asked {
  int64_t job = 0;
  int64_t process_set = 0;
};

template <Question kQuestion>
void* create_question(TF_OpKernelConstruction* construction) {
  auto asked = std::make_unique<Asked>();
  Status status;
  asked->job = integer_attribute(construction, "job", status);
  if constexpr (kernels::is_about_a_set(kQuestion)) {
    asked->process_set = integer_attribute(construction, "process_set_id", status);
  }
  if (!status.ok()) tf.OpKernelConstruction_Failure(construction, status.get());
  return asked.release();
}

void destroy_question(void* kernel) { delete static_cast<Asked*>(kernel); }

template <Question kQuestion>
void compute_answer(void* kernel, TF_OpKernelContext* context) {
  const auto& asked = *static_cast<const Asked*>(kernel);
  const std::variant<int, kernels::Failure> answer = kernels::answer(kQuestion, asked.job, asked.process_set);
  Status status;
  if (const auto* failure = std::get_if<kernels::Failure>(&answer)) {
    status.set(code_of(*failure), failure->text);
    return tf.OpKernelContext_Failure(context, status.get());
  }
  const TensorPtr output(tf.AllocateOutput(context, 0, kTypeInt32, nullptr, 0, sizeof(int32_t), status.get()));
  if (!status.ok()) return tf.OpKernelContext_Failure(context, status.get());
  *static_cast<int32_t*>(tf.TensorData(output.get())) = std::get<int>(answer);
}

template <Question kQuestion>
void register_question(const char* op) {
  register_builder(
      op, tf.NewKernelBuilder(op, "CPU", &create_question<kQuestion>, &compute_answer<kQuestion>, &destroy_question));
}

}  // namespace

void register_kernels() {
  for (const Definition& definition : definitions()) {
    if (definition.performs) register_collective(definition.name, *definition.performs);
  }
  register_question<Question::kRank>("HorovodRank");
  register_question<Question::kLocalRank>("HorovodLocalRank");
  register_question<Question::kLocalSize>("HorovodLocalSize");
  register_question<Question::kSize>("HorovodSize");
  register_question<Question::kIncluded>("HorovodProcessSetIncluded");
}

}  // namespace hvd::tensorflow
