// Several tensors, or half types, in one piece of memory and back.
#pragma once

#include <vector>

#include "backend/backend.h"

namespace hvd::mpi {

[[nodiscard]] int64_t total_of(const std::vector<Extent>& extents);

// The tensors, times `factor`, one after the other in the wire dtype. Memory may be the only tensor itself.
void pack(DType dtype, double factor, const std::vector<Extent>& inputs, std::byte* memory);

// The reverse.
void unpack(DType dtype, double factor, const std::byte* memory, const std::vector<Extent>& outputs);

}  // namespace hvd::mpi
