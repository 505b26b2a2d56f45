// Sums of integers on their way to an average, for whoever must send partial sums on: whole numbers of int64 that do
// not overflow for up to 2^20 ranks. An integer of 64 bits becomes two of them, its upper and its lower half.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"

namespace hvd {

// How many int64 stand for one element of an integer dtype.
[[nodiscard]] int64_t words_of(DType dtype);

// `count` elements to int64s, which may be added up word by word.
// Throws Error(kInternal) if `dtype` is no integer.
void widen(DType dtype, std::byte* words, const std::byte* src, size_t count);

// Makes the average of `divisor` ranks times `factor` of a sum, by the rules of average() in kernels.h.
// Throws Error(kInternal) if `dtype` is no integer.
void narrow_average(DType dtype, std::byte* dst, const std::byte* words, size_t count, double factor, int divisor);

}  // namespace hvd
