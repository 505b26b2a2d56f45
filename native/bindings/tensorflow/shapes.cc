#include "bindings/tensorflow/shapes.h"

#include <limits>
#include <memory>

namespace hvd::tensorflow {
namespace {

struct DeleteShape {
  void operator()(TF_ShapeHandle* shape) const { tf.DeleteShapeHandle(shape); }
};
using ShapePtr = std::unique_ptr<TF_ShapeHandle, DeleteShape>;

// As a size, TensorFlow's number of a dimension that is not known.
constexpr size_t kUnknownSize = std::numeric_limits<size_t>::max();

bool ok(const TF_Status* status) { return tf.GetCode(status) == kOk; }

// Fails for a scalar, which has no rows.
void rows_of(TF_ShapeInferenceContext* context, int index, TF_Status* status) {
  const ShapePtr input(tf.NewShapeHandle());
  tf.ShapeInferenceContextGetInput(context, index, input.get(), status);
  if (!ok(status)) return;
  if (tf.ShapeInferenceContextRankKnown(context, input.get()) == 0) {  // what input and output have in common
    tf.ShapeInferenceContextSetOutput(context, index, input.get(), status);
    return;
  }
  const ShapePtr with_rows(tf.NewShapeHandle());
  tf.ShapeInferenceContextWithRankAtLeast(context, input.get(), 1, with_rows.get(), status);
  if (!ok(status)) return;
  const ShapePtr row(tf.NewShapeHandle());
  tf.ShapeInferenceContextSubshape(context, with_rows.get(), 1, std::numeric_limits<int64_t>::max(), row.get(), status);
  if (!ok(status)) return;
  const ShapePtr rows(tf.ShapeInferenceContextVectorFromSize(context, kUnknownSize));
  const ShapePtr output(tf.NewShapeHandle());
  tf.ShapeInferenceContextConcatenateShapes(context, rows.get(), row.get(), output.get(), status);
  if (ok(status)) tf.ShapeInferenceContextSetOutput(context, index, output.get(), status);
}

}  // namespace

void same_shapes(TF_ShapeInferenceContext* context, TF_Status* status) {
  const auto num_inputs = static_cast<int>(tf.ShapeInferenceContextNumInputs(context));
  const ShapePtr shape(tf.NewShapeHandle());
  for (int i = 0; i < num_inputs && ok(status); ++i) {
    tf.ShapeInferenceContextGetInput(context, i, shape.get(), status);
    if (ok(status)) tf.ShapeInferenceContextSetOutput(context, i, shape.get(), status);
  }
}

void other_rows(TF_ShapeInferenceContext* context, TF_Status* status) {
  const auto num_inputs = static_cast<int>(tf.ShapeInferenceContextNumInputs(context));
  for (int i = 0; i < num_inputs && ok(status); ++i) rows_of(context, i, status);
}

void rows_and_splits(TF_ShapeInferenceContext* context, TF_Status* status) {
  rows_of(context, 0, status);
  if (!ok(status)) return;
  const ShapePtr splits(tf.ShapeInferenceContextVectorFromSize(context, kUnknownSize));
  tf.ShapeInferenceContextSetOutput(context, 1, splits.get(), status);
}

void one_scalar(TF_ShapeInferenceContext* context, TF_Status* status) {
  const ShapePtr scalar(tf.ShapeInferenceContextScalar(context));
  tf.ShapeInferenceContextSetOutput(context, 0, scalar.get(), status);
}

void no_outputs(TF_ShapeInferenceContext* /*context*/, TF_Status* status) { tf.SetStatus(status, kOk, ""); }

}  // namespace hvd::tensorflow
