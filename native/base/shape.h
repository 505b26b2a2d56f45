// The extents of an array.
#pragma once

#include <cstdint>
#include <numeric>
#include <string>

#include "base/inline_vector.h"

namespace hvd {

// Outermost first; none of a scalar. Each operation has several shapes, and most arrays have few dimensions.
using Shape = InlineVector<int64_t, 5>;

[[nodiscard]] inline int64_t num_elements(const Shape& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, [](int64_t a, int64_t b) { return a * b; });
}

[[nodiscard]] std::string to_string(const Shape& shape);

}  // namespace hvd
