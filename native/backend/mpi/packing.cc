#include "backend/mpi/packing.h"

#include <cstring>

#include "backend/mpi/operators.h"
#include "reduce/adasum.h"
#include "reduce/kernels.h"

namespace hvd::mpi {
namespace {

void convert_in(DType dtype, double factor, const Extent& input, std::byte* memory) {
  const auto count = static_cast<size_t>(input.count);
  if (wire_dtype(dtype) != dtype) {
    to_adasum(dtype, memory, input.data, count, factor);
  } else if (memory != input.data || factor != 1.0) {
    scale(dtype, memory, input.data, count, factor);
  }
}

void convert_out(DType dtype, double factor, const std::byte* memory, const Extent& output) {
  const auto count = static_cast<size_t>(output.count);
  if (wire_dtype(dtype) != dtype) {
    from_adasum(dtype, output.data, memory, count, factor);
  } else if (memory != output.data || factor != 1.0) {
    scale(dtype, output.data, memory, count, factor);
  }
}

}  // namespace

int64_t total_of(const std::vector<Extent>& extents) {
  int64_t total = 0;
  for (const Extent& extent : extents) total += extent.count;
  return total;
}

void pack(DType dtype, double factor, const std::vector<Extent>& inputs, std::byte* memory) {
  for (const Extent& input : inputs) {
    if (input.count == 0) continue;
    convert_in(dtype, factor, input, memory);
    memory += static_cast<size_t>(input.count) * size_of(wire_dtype(dtype));
  }
}

void unpack(DType dtype, double factor, const std::byte* memory, const std::vector<Extent>& outputs) {
  for (const Extent& output : outputs) {
    if (output.count == 0) continue;
    convert_out(dtype, factor, memory, output);
    memory += static_cast<size_t>(output.count) * size_of(wire_dtype(dtype));
  }
}

}  // namespace hvd::mpi
