// The attributes of an operation, read when its kernel is made.
#pragma once

#include <cstdint>

#include "bindings/kernels/call.h"
#include "bindings/tensorflow/tf_interface.h"

namespace hvd::tensorflow {

// The name is that of the node, or what the user called an eager operation. Reports what is wrong to the construction,
// and returns false then.
[[nodiscard]] bool read_attributes(TF_OpKernelConstruction* construction, OpKind kind, bool grouped,
                                   kernels::Call& call);

[[nodiscard]] int64_t integer_attribute(TF_OpKernelConstruction* construction, const char* name, Status& status);

}  // namespace hvd::tensorflow
