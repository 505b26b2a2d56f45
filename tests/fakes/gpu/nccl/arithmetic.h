// How NCCL combines what ranks give; half types through float, rounded once.
#pragma once

#include <cstddef>
#include <vector>

#include "nccl/codes.h"

namespace fake_nccl {

// 0 if there is no such dtype here: float8 is not.
[[nodiscard]] size_t size_of(Dtype dtype);

// `given`: of each rank. kAvg divides by their number, toward zero for integers.
void reduce(Dtype dtype, Op op, const std::vector<const std::byte*>& given, size_t count, std::byte* result);

// values[i] *= *scalar
void multiply(Dtype dtype, const std::byte* scalar, size_t count, std::byte* values);

}  // namespace fake_nccl
