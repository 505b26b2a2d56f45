// Values in 8 bits with a float32 scale for each block (base/quantization.h). A block is its scale, then a byte for
// each value; blocks lie one after the other without gaps, at any alignment.
//
//   scale = m / most           m: the largest magnitude of the block; most: what the format holds, 127, 448 or 57344
//   code  = round(value * (most / m))   to the nearest that the format holds, of two the even one; in float32
//   value = code * scale
//
// A block whose largest magnitude is below 2^-90 becomes zeros, so that no result is subnormal: a processor may be told
// to flush those. A block that holds an infinity or a NaN says so by the sign of its scale, which is that of its finite
// values: there infinities and NaNs have codes of their own, and stay what they are.
//
// Results are bit-equal on every instruction set (kernels.h), the payloads of NaNs aside.
#pragma once

#include <cstddef>

#include "base/dtype.h"
#include "base/quantization.h"

namespace hvd {

// dst: quantized_bytes(count). Throws Error(kInternal) for kNone, as the next two do.
void quantize(Quantization format, std::byte* dst, const float* values, int64_t count);

// dst[i] = value of src at i.
void dequantize(Quantization format, float* dst, const std::byte* src, int64_t count);

// dst[i] += value of src at i.
void add_dequantized(Quantization format, float* dst, const std::byte* src, int64_t count);

// left[i] = wanted[i] - sent[i]: what an error feedback keeps; 0 where that is not finite. If `more`, it is added.
void keep_error(float* left, const float* wanted, const float* sent, int64_t count, bool more);

// dst[i] = src[i] * factor, which is rounded to `dtype` and then to float32. Values of float64 beyond the range of
// float32 become infinite. Throws Error(kInternal) if `dtype` is not floating point, as from_float32 does.
void to_float32(DType dtype, float* dst, const std::byte* src, int64_t count, double factor);

// dst[i] = src[i] / divisor * factor in `dtype`, that of half types in float32; src is overwritten.
void from_float32(DType dtype, std::byte* dst, float* src, int64_t count, int divisor, double factor);

}  // namespace hvd
