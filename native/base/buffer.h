// Memory that an operation reads or writes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "base/shape.h"

namespace hvd {

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

// Of an operation, which mostly has one.
using Buffers = InlineVector<Buffer, 1>;

}  // namespace hvd
