// Memory that an operation reads or writes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "base/dtype.h"

namespace hvd {

using Shape = std::vector<int64_t>;

[[nodiscard]] inline int64_t num_elements(const Shape& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, [](int64_t a, int64_t b) { return a * b; });
}

[[nodiscard]] std::string to_string(const Shape& shape);

inline constexpr int kCpuDevice = -1;

// A contiguous array that somebody else owns. `device` is -1 for the CPU, else the index of a GPU, and
// `stream` the queue of that device on which the array becomes valid.
struct Buffer {
  std::byte* data = nullptr;
  DType dtype = DType::kFloat32;
  Shape shape;
  int device = kCpuDevice;
  void* stream = nullptr;

  [[nodiscard]] int64_t count() const { return num_elements(shape); }
  [[nodiscard]] size_t bytes() const { return static_cast<size_t>(count()) * size_of(dtype); }
};

}  // namespace hvd
