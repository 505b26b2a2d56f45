#include "bindings/tensorflow/definitions.h"

#include <initializer_list>

#include "bindings/tensorflow/shapes.h"

namespace hvd::tensorflow {
namespace {

constexpr const char* kType =
    "T: {bool, uint8, int8, uint16, int16, uint32, int32, uint64, int64, half, bfloat16, float, double}";
constexpr const char* kTypeAttribute =
    "T: list({bool, uint8, int8, uint16, int16, uint32, int32, uint64, int64, half, bfloat16, float, double}) >= 1";

// `eager`: run by itself, not in a graph; then `tensor_name` is what the user called it, or empty. In a graph the name
// of the node counts. `job`: the number of the job in this process. `waits_briefly`: nothing else of a step can happen
// meanwhile, so the thread that runs it helps.
std::vector<const char*> with_common(std::initializer_list<const char*> own) {
  std::vector<const char*> attributes = {
      "job: int = 0",          "process_set_id: int = 0",     "ignore_name_scope: bool = false",
      "eager: bool = false",   "waits_briefly: bool = false", "tensor_name: string = ''",
      "call_site: string = ''"};
  attributes.insert(attributes.begin(), own.begin(), own.end());
  return attributes;
}

std::vector<const char*> reducing(const char* type) {
  return with_common({type, "reduce_op: int", "prescale_factor: string = '1.0'", "postscale_factor: string = '1.0'",
                      "quantization: int = 0", "num_residuals: int >= 0 = 0"});
}

std::vector<Definition> make_definitions() {
  return {
      {"HorovodAllreduce", reducing(kType), {"tensor: T"}, {"sum: T"}, &same_shapes, Performs{OpKind::kAllreduce}},
      {"HorovodGroupedAllreduce",
       reducing(kTypeAttribute),
       {"tensors: T"},
       {"sums: T"},
       &same_shapes,
       Performs{OpKind::kAllreduce, true}},
      {"HorovodFeedbackAllreduce",
       reducing(kTypeAttribute),
       {"residuals: num_residuals * float", "kept_by: int32", "tensors: T"},
       {"kept: num_residuals * float", "rank: int32", "sums: T"},
       &same_shapes,
       Performs{OpKind::kAllreduce, true}},
      {"HorovodReducescatter",
       reducing(kType),
       {"tensor: T"},
       {"output: T"},
       &other_rows,
       Performs{OpKind::kReducescatter}},
      {"HorovodGroupedReducescatter",
       reducing(kTypeAttribute),
       {"tensors: T"},
       {"outputs: T"},
       &other_rows,
       Performs{OpKind::kReducescatter, true}},
      {"HorovodAllgather",
       with_common({kType}),
       {"tensor: T"},
       {"output: T"},
       &other_rows,
       Performs{OpKind::kAllgather}},
      {"HorovodGroupedAllgather",
       with_common({kTypeAttribute}),
       {"tensors: T"},
       {"outputs: T"},
       &other_rows,
       Performs{OpKind::kAllgather, true}},
      {"HorovodBroadcast",
       with_common({kType, "root_rank: int"}),
       {"tensor: T"},
       {"output: T"},
       &same_shapes,
       Performs{OpKind::kBroadcast}},
      {"HorovodGroupedBroadcast",
       with_common({kTypeAttribute, "root_rank: int"}),
       {"tensors: T"},
       {"outputs: T"},
       &same_shapes,
       Performs{OpKind::kBroadcast, true}},
      {"HorovodAlltoall",
       with_common({kType, "equal_splits: bool = false"}),
       {"tensor: T", "splits: int32"},
       {"output: T", "received_splits: int32"},
       &rows_and_splits,
       Performs{OpKind::kAlltoall}},
      {"HorovodBarrier", with_common({}), {}, {}, &no_outputs, Performs{OpKind::kBarrier}},
      {"HorovodJoin", with_common({}), {}, {"last_joined: int32"}, &one_scalar, Performs{OpKind::kJoin}},
      {"HorovodRank", {"job: int = 0", "process_set_id: int = 0"}, {}, {"rank: int32"}, &one_scalar},
      {"HorovodLocalRank", {"job: int = 0"}, {}, {"rank: int32"}, &one_scalar},
      {"HorovodLocalSize", {"job: int = 0"}, {}, {"size: int32"}, &one_scalar},
      {"HorovodSize", {"job: int = 0", "process_set_id: int = 0"}, {}, {"size: int32"}, &one_scalar},
      {"HorovodProcessSetIncluded", {"job: int = 0", "process_set_id: int = 0"}, {}, {"included: int32"}, &one_scalar},
  };
}

}  // namespace

const std::vector<Definition>& definitions() {
  static const auto* made = new std::vector<Definition>(make_definitions());
  return *made;
}

// All are stateful: an operation that other ranks wait for must be neither computed in advance, nor merged with its
// like, nor dropped because nobody reads its result. horovod.tensorflow.native_ops keeps TensorFlow from putting them
// in a row.
void register_definitions() {
  for (const Definition& definition : definitions()) {
    TF_OpDefinitionBuilder* builder = tf.NewOpDefinitionBuilder(definition.name);
    for (const char* attribute : definition.attributes) tf.OpDefinitionBuilderAddAttr(builder, attribute);
    for (const char* input : definition.inputs) tf.OpDefinitionBuilderAddInput(builder, input);
    for (const char* output : definition.outputs) tf.OpDefinitionBuilderAddOutput(builder, output);
    tf.OpDefinitionBuilderSetIsStateful(builder, true);
    tf.OpDefinitionBuilderSetShapeInferenceFunction(builder, definition.shape);
    Status status;
    tf.RegisterOpDefinition(builder, status.get());
    if (!status.ok()) note_problem(std::string(definition.name) + ": " + tf.Message(status.get()));
  }
}

}  // namespace hvd::tensorflow
