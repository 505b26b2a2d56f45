// What is known of the shapes of results before an operation runs.
#pragma once

#include "bindings/tensorflow/tf_interface.h"

namespace hvd::tensorflow {

void same_shapes(TF_ShapeInferenceContext* context, TF_Status* status);
// As the inputs, but the first dimension is unknown.
void other_rows(TF_ShapeInferenceContext* context, TF_Status* status);
void rows_and_splits(TF_ShapeInferenceContext* context, TF_Status* status);
void one_scalar(TF_ShapeInferenceContext* context, TF_Status* status);
void no_outputs(TF_ShapeInferenceContext* context, TF_Status* status);

}  // namespace hvd::tensorflow
