// The attributes of an operation, read when its kernel is made.
#pragma once

#include <cstdint>
#include <string>

#include "backend/backend.h"
#include "bindings/tensorflow/tf_interface.h"

namespace hvd::tensorflow {

struct Attributes {
  OpKind kind = OpKind::kAllreduce;
  bool grouped = false;
  std::string name;  // of the node, or what the user called an eager operation; empty if that has no name
  int64_t process_set = 0;
  bool eager = false;
  bool waits_briefly = false;
  std::string call_site;
  int reduce_op = 0;
  double prescale = 1.0;
  double postscale = 1.0;
  int root = 0;
  bool equal_splits = false;
};

// Reports what is wrong to the construction, and returns false then.
[[nodiscard]] bool read_attributes(TF_OpKernelConstruction* construction, OpKind kind, bool grouped,
                                   Attributes& attributes);

[[nodiscard]] int64_t integer_attribute(TF_OpKernelConstruction* construction, const char* name, Status& status);

// "allreduce", "grouped_allgather", ...: the first word of names on the wire.
[[nodiscard]] std::string prefix_of(const Attributes& attributes);

}  // namespace hvd::tensorflow
