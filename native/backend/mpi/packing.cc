#include "backend/mpi/packing.h"

#include <algorithm>

#include "backend/mpi/operators.h"
#include "reduce/adasum.h"
#include "reduce/kernels.h"
#include "reduce/wide_sum.h"

namespace hvd::mpi {
namespace {

constexpr size_t kBlockCount = 1024;

// What a factor gives is rounded to the dtype before it is widened, as it is where values travel as they are.
void widen_scaled(DType dtype, double factor, const Extent& input, std::byte* memory) {
  const auto count = static_cast<size_t>(input.count);
  if (factor == 1.0) return widen(dtype, memory, input.data, count);
  std::byte block[kBlockCount * sizeof(int64_t)];
  const size_t bytes_per_element = static_cast<size_t>(words_of(dtype)) * sizeof(int64_t);
  for (size_t at = 0; at < count; at += kBlockCount) {
    const size_t length = std::min(kBlockCount, count - at);
    scale(dtype, block, input.data + at * size_of(dtype), length, factor);
    widen(dtype, memory + at * bytes_per_element, block, length);
  }
}

void convert_in(const Batch& batch, const Extent& input, std::byte* memory) {
  const auto count = static_cast<size_t>(input.count);
  const double factor = batch.prescale;
  if (batch.averages_integers()) {
    widen_scaled(batch.dtype, factor, input, memory);
  } else if (wire_dtype(batch.dtype) != batch.dtype) {
    to_adasum(batch.dtype, memory, input.data, count, factor);
  } else if (memory != input.data || factor != 1.0) {
    scale(batch.dtype, memory, input.data, count, factor);
  }
}

void convert_out(const Batch& batch, std::byte* memory, const Extent& output) {
  const auto count = static_cast<size_t>(output.count);
  const double factor = batch.postscale;
  const std::byte* const sum[] = {memory};
  if (batch.averages_integers()) {
    narrow_average(batch.dtype, output.data, memory, count, factor, batch.divisor);
  } else if (wire_dtype(batch.dtype) != batch.dtype) {
    if (batch.divisor != 1) average(wire_dtype(batch.dtype), memory, sum, count, 1.0, batch.divisor);
    from_adasum(batch.dtype, output.data, memory, count, factor);
  } else if (memory != output.data || factor != 1.0 || batch.divisor != 1) {
    average(batch.dtype, output.data, sum, count, factor, batch.divisor);
  }
}

}  // namespace

Wire wire_of(const Batch& batch) {
  if (batch.averages_integers()) return {DType::kInt64, words_of(batch.dtype)};
  return {wire_dtype(batch.dtype)};
}

int64_t total_of(const std::vector<Extent>& extents) {
  int64_t total = 0;
  for (const Extent& extent : extents) total += extent.count;
  return total;
}

void pack(const Batch& batch, std::byte* memory) {
  const Wire wire = wire_of(batch);
  for (const Extent& input : batch.inputs) {
    if (input.count == 0) continue;
    convert_in(batch, input, memory);
    memory += static_cast<size_t>(input.count * wire.words) * size_of(wire.dtype);
  }
}

void unpack(const Batch& batch, std::byte* memory) {
  const Wire wire = wire_of(batch);
  for (const Extent& output : batch.outputs) {
    if (output.count == 0) continue;
    convert_out(batch, memory, output);
    memory += static_cast<size_t>(output.count * wire.words) * size_of(wire.dtype);
  }
}

}  // namespace hvd::mpi
