// Several tensors, or what travels in another type than its own, in one piece of memory and back.
#pragma once

#include <vector>

#include "backend/backend.h"

namespace hvd::mpi {

// How the values of a batch travel: as so many elements of a dtype for each of their own.
struct Wire {
  DType dtype = DType::kUInt8;
  int64_t words = 1;
};
[[nodiscard]] Wire wire_of(const Batch& batch);

[[nodiscard]] int64_t total_of(const std::vector<Extent>& extents);

// The inputs, times the prescale factor, one after the other as they travel. Memory may be the only input itself.
void pack(const Batch& batch, std::byte* memory);

// The reverse: divides, applies the postscale factor, and fills the outputs. Memory is written, too.
void unpack(const Batch& batch, std::byte* memory);

}  // namespace hvd::mpi
