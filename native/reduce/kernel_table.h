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

// Of an average of integers, see AverageKernel.
[[nodiscard]] Scaling integer_scaling(DType dtype, double factor, int divisor);

// As hvd::reduce, hvd::average and hvd::scale, for num_sources >= 1 and count >= 1.
using ReduceKernel = void (*)(std::byte* dst, const std::byte* const* sources, size_t num_sources, size_t count,
                              double factor);
// Floating point is divided, then multiplied. Integers of 64 bits are one or the other: the factor or the divisor is 1;
// narrower ones are multiplied.
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

// As hvd::quantize, hvd::dequantize and hvd::add_dequantized.
using QuantizeKernel = void (*)(std::byte* dst, const float* values, size_t count);
using DequantizeKernel = void (*)(float* dst, const std::byte* src, size_t count);

// The kernels of one format of 8 bits.
struct QuantizeRow {
  QuantizeKernel quantize;
  DequantizeKernel dequantize;
  DequantizeKernel add;
};

// As hvd::keep_error, in its two forms.
using KeepErrorKernel = void (*)(float* left, const float* wanted, const float* sent, size_t count);

struct KernelTable {
  const char* isa;
  KernelRow rows[kNumDTypes];  // in the order of DType
  QuantizeRow quantized[3];    // in the order of Quantization, which begins with kNone
  KeepErrorKernel set_error;
  KeepErrorKernel add_error;
};

// The one in use.
[[nodiscard]] const KernelTable& kernel_table();

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
