// What a compiled program says of a collective; see horovod/jax/primitives.py.
#pragma once

#include <cstdint>
#include <vector>

#include "bindings/jax/xla_interface.h"
#include "bindings/kernels/call.h"

namespace hvd::jax {

struct Attributes {
  kernels::Call call;
  int64_t size = 0;            // ranks for which the program was compiled; 0 if the shapes are those of any number
  bool is_weighted = false;    // the last tensor is this rank's weight
  std::vector<int64_t> table;  // of an alltoall: how many rows each member sends to each, by sender
};

[[nodiscard]] Attributes attributes_of(const XlaCallFrame& frame);

}  // namespace hvd::jax
