// The kernels of Adasum, which adds two gradients as far as they are orthogonal and averages them as far as they agree:
//
//   adasum(a, b) = a (1 - a·b / 2|a|²) + b (1 - a·b / 2|b|²)
//
// From S. Maleki et al., "Scaling Distributed Training with Adaptive Summation", https://arxiv.org/abs/2006.02924.
//
// Results have the same bits on every processor of an architecture: there is one version for all instruction sets,
// since it is the wire that Adasum waits for.
#pragma once

#include <cstddef>

#include "base/dtype.h"

namespace hvd {

// The dtype in which values of `dtype` are combined and travel between the levels of the tree: float32 for half types,
// so that only the result is rounded to them; float32 and float64 are their own.
// Throws Error(kInternal) if `dtype` is not floating point.
[[nodiscard]] DType adasum_dtype(DType dtype);

// dst[i] = src[i] * factor, rounded to `dtype`, from there to adasum_dtype(dtype); dst may be src if these are the
// same.
void to_adasum(DType dtype, std::byte* dst, const std::byte* src, size_t count, double factor);

// dst[i] = src[i] * factor, from adasum_dtype(dtype) to `dtype`; dst may be src if these are the same.
void from_adasum(DType dtype, std::byte* dst, const std::byte* src, size_t count, double factor);

// dst = adasum(a, b) of two vectors of float32 or float64; dst may be a or b. The products are summed and the terms
// added in float64 (of float64 whose products overflow: in long double). A term whose squared norm is below
// sqrt(DBL_MIN) is added as it is.
// Throws Error(kInternal) for another dtype.
void adasum(DType dtype, std::byte* dst, const std::byte* a, const std::byte* b, size_t count);

}  // namespace hvd
