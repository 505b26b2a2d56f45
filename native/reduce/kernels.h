// Typed kernels over contiguous memory. One table, chosen once for the instruction set at hand; results are
// bit-equal whichever it is (the payloads of NaNs aside).
//
// Half types (float16, bfloat16) are combined in float32 and rounded once, to nearest even.
// Min and Max of floating point: NaN if any source is NaN; of -0 and +0 the later source is taken.
// bool: Sum and Max are "or", Product and Min are "and". Integers wrap around on overflow, in a
// sum; an average of them is exact.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "base/dtype.h"

namespace hvd {

// dst[i] = sources[0][i] op sources[1][i] op … in this order; dst may be one of the sources, but must not overlap
// one otherwise. At least one source; `count` elements each; no alignment is required.
// `op` is Sum, Min, Max or Product.
// If `factor` is not 1, the result is multiplied by it before it is rounded and stored:
//   half types         in float32, on the accumulator that was never rounded in between
//   float32, float64   by the factor rounded to the type, as frameworks multiply a tensor by a number
//   integers           in float64, then truncated toward zero; out of range becomes the nearest end, NaN becomes 0.
//                      Beyond 2^53 the float64 is an approximation
//   bool               unchanged
// One source and a factor of 1 is a copy, bit by bit.
// Throws Error(kInternal) for another `op` or for no source.
void reduce(DType dtype, ReduceOp op, std::byte* dst, std::span<const std::byte* const> sources, size_t count,
            double factor);

// The sum of the sources divided by `divisor` (> 0), and then multiplied by `factor`; otherwise as reduce().
//   half types         both in float32, on the accumulator that was never rounded in between
//   float32, float64   the sum is divided, and the quotient multiplied by the factor rounded to the type
//   integers           the exact sum is divided and truncated toward zero; with a factor other than 1, the sum is
//                      multiplied by factor / divisor in float64 instead, and truncated likewise
//   bool               as Sum
// Exact for up to 2^19 sources.
void average(DType dtype, std::byte* dst, std::span<const std::byte* const> sources, size_t count, double factor,
             int divisor);

// dst[i] = src[i] * factor by the same rules; dst may be src. A factor of 1 copies.
void scale(DType dtype, std::byte* dst, const std::byte* src, size_t count, double factor);

// What a sum of integers is multiplied by for the average of `divisor` ranks times `factor`. Rounded away from zero, so
// that no average is lost to truncation: 1 / 49 in float64 times 49 is less than 1.
[[nodiscard]] double integer_average_factor(double factor, int divisor);

// Which instruction set the table was made for: "avx512", "avx2" or "base".
[[nodiscard]] std::string_view kernel_isa();

// Forces one, for tests and benchmarks; returns false if this processor does not have it.
bool select_kernel_isa(std::string_view isa);

}  // namespace hvd
