// Values that change nothing in a reduction: what a rank gives that has nothing to give.
#pragma once

#include <cstddef>

#include "base/dtype.h"

namespace hvd {

// dst[0 … count) = the neutral element: 0 for Sum and Adasum, 1 for Product, the greatest value (infinity) for Min and
// the least for Max. For bool Sum and Max are "or", Product and Min are "and".
// Throws Error(kInternal) for Average, which is a Sum and a factor.
void fill_neutral(DType dtype, ReduceOp op, std::byte* dst, size_t count);

}  // namespace hvd
