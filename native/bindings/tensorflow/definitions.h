// The operations as TensorFlow's graphs know them.
#pragma once

#include <vector>

#include "bindings/tensorflow/tf_interface.h"

namespace hvd::tensorflow {

struct Definition {
  const char* name;
  std::vector<const char*> attributes;
  std::vector<const char*> inputs;
  std::vector<const char*> outputs;
  ShapeFunction shape;
};

[[nodiscard]] const std::vector<Definition>& definitions();

// Registers what definitions() holds; part of registering this library.
void register_definitions();

}  // namespace hvd::tensorflow
