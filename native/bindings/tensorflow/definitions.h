// The operations as TensorFlow's graphs know them.
#pragma once

#include <optional>
#include <vector>

#include "bindings/tensorflow/tf_interface.h"
#include "plan/collective.h"

namespace hvd::tensorflow {

// What a kernel does that is no question about the job.
struct Performs {
  OpKind kind;
  bool grouped = false;
};

struct Definition {
  const char* name;
  std::vector<const char*> attributes;
  std::vector<const char*> inputs;
  std::vector<const char*> outputs;
  ShapeFunction shape;
  std::optional<Performs> performs = std::nullopt;
};

[[nodiscard]] const std::vector<Definition>& definitions();

// Registers what definitions() holds; part of registering this library.
void register_definitions();

}  // namespace hvd::tensorflow
