#include "reduce/quantize.h"

#include <cstring>
#include <string>

#include "base/error.h"
#include "reduce/adasum.h"
#include "reduce/kernel_table.h"
#include "reduce/kernels.h"

namespace hvd {
namespace {

const QuantizeRow& row_of(Quantization format) {
  if (format == Quantization::kNone) throw Error(ErrorKind::kInternal, "values are to be quantized, but to no format");
  return kernel_table().quantized[static_cast<size_t>(format) - 1];
}

void check_floating(DType dtype) {
  if (is_floating(dtype)) return;
  throw Error(ErrorKind::kInternal, std::string(name_of(dtype)) + " was to be quantized, but is not floating point");
}

}  // namespace

void quantize(Quantization format, std::byte* dst, const float* values, int64_t count) {
  row_of(format).quantize(dst, values, static_cast<size_t>(count));
}

void dequantize(Quantization format, float* dst, const std::byte* src, int64_t count) {
  row_of(format).dequantize(dst, src, static_cast<size_t>(count));
}

void add_dequantized(Quantization format, float* dst, const std::byte* src, int64_t count) {
  row_of(format).add(dst, src, static_cast<size_t>(count));
}

void keep_error(float* left, const float* wanted, const float* sent, int64_t count, bool more) {
  const KernelTable& table = kernel_table();
  (more ? table.add_error : table.set_error)(left, wanted, sent, static_cast<size_t>(count));
}

void to_float32(DType dtype, float* dst, const std::byte* src, int64_t count, double factor) {
  check_floating(dtype);
  if (dtype != DType::kFloat64) {
    return to_adasum(dtype, reinterpret_cast<std::byte*>(dst), src, static_cast<size_t>(count), factor);
  }
  for (int64_t i = 0; i < count; ++i) {
    double value = 0;
    std::memcpy(&value, src + static_cast<size_t>(i) * sizeof(double), sizeof(double));
    dst[i] = static_cast<float>(value * factor);
  }
}

void from_float32(DType dtype, std::byte* dst, float* src, int64_t count, int divisor, double factor) {
  check_floating(dtype);
  const auto num = static_cast<size_t>(count);
  auto* const values = reinterpret_cast<std::byte*>(src);
  if (dtype == DType::kFloat64) {
    for (size_t i = 0; i < num; ++i) {
      const double value = src[i];
      std::memcpy(dst + i * sizeof(double), &value, sizeof(double));
    }
    const std::byte* wide[] = {dst};
    return average(dtype, dst, wide, num, factor, divisor);
  }
  const std::byte* sources[] = {values};
  if (dtype == DType::kFloat32) return average(dtype, dst, sources, num, factor, divisor);
  average(DType::kFloat32, values, sources, num, factor, divisor);
  from_adasum(dtype, dst, values, num, 1.0);
}

}  // namespace hvd
