// The seam between the dispatcher and the kernels of one instruction set. Plain pointers and C arrays only:
// the files behind it are compiled with different flags and must share no inline function.
#pragma once

#include <cstddef>

#include "base/dtype.h"

namespace hvd {

// What becomes of a value in the end.
struct Scaling {
  double factor;
  double divisor;
};

// Of an average of integers: either the factor or the divisor is 1, see AverageKernel.
[[nodiscard]] Scaling integer_scaling(double factor, int divisor);

// As hvd::reduce, hvd::average and hvd::scale, for num_sources >= 1 and count >= 1.
using ReduceKernel = void (*)(std::byte* dst, const std::byte* const* sources, size_t num_sources, size_t count,
                              double factor);
// Floating point is divided, then multiplied. Integers are one or the other: the factor or the divisor is 1.
using AverageKernel = void (*)(std::byte* dst, const std::byte* const* sources, size_t num_sources, size_t count,
                               Scaling scaling);
using ScaleKernel = void (*)(std::byte* dst, const std::byte* src, size_t count, double factor);

// The kernels of one element type.
struct KernelRow {
  ReduceKernel sum;
  ReduceKernel min;
  ReduceKernel max;
  ReduceKernel product;
  AverageKernel average;
  ScaleKernel scale;
};

struct KernelTable {
  const char* isa;
  KernelRow rows[kNumDTypes];  // in the order of DType
};

namespace reduce_base {
extern const KernelTable kTable;
}
namespace reduce_avx2 {
extern const KernelTable kTable;
}
namespace reduce_avx512 {
extern const KernelTable kTable;
}

}  // namespace hvd
