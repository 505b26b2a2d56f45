#include "reduce/neutral.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>

#include "base/error.h"

namespace hvd {
namespace {

template <typename T>
struct Elements {
  T zero;
  T one;
  T least;
  T greatest;
};

template <typename T>
constexpr Elements<T> elements_of() {
  using Limits = std::numeric_limits<T>;
  if constexpr (Limits::has_infinity) return {T(0), T(1), -Limits::infinity(), Limits::infinity()};
  return {T(0), T(1), Limits::lowest(), Limits::max()};
}

template <typename T>
void fill(std::byte* dst, size_t count, ReduceOp op, const Elements<T>& elements) {
  T value = elements.zero;
  if (op == ReduceOp::kProduct) value = elements.one;
  if (op == ReduceOp::kMin) value = elements.greatest;
  if (op == ReduceOp::kMax) value = elements.least;
  for (size_t i = 0; i < count; ++i) std::memcpy(dst + i * sizeof(T), &value, sizeof(T));
}

template <typename T>
void fill(std::byte* dst, size_t count, ReduceOp op) {
  fill<T>(dst, count, op, elements_of<T>());
}

}  // namespace

void fill_neutral(DType dtype, ReduceOp op, std::byte* dst, size_t count) {
  if (op == ReduceOp::kAverage) throw Error(ErrorKind::kInternal, "Average has no neutral element of its own");
  switch (dtype) {
    case DType::kBool:
      return fill<uint8_t>(dst, count, op, {0, 1, 0, 1});
    case DType::kUInt8:
      return fill<uint8_t>(dst, count, op);
    case DType::kInt8:
      return fill<int8_t>(dst, count, op);
    case DType::kUInt16:
      return fill<uint16_t>(dst, count, op);
    case DType::kInt16:
      return fill<int16_t>(dst, count, op);
    case DType::kUInt32:
      return fill<uint32_t>(dst, count, op);
    case DType::kUInt64:
      return fill<uint64_t>(dst, count, op);
    case DType::kInt32:
      return fill<int32_t>(dst, count, op);
    case DType::kInt64:
      return fill<int64_t>(dst, count, op);
    case DType::kFloat16:  // bits of 0, 1, -infinity, infinity
      return fill<uint16_t>(dst, count, op, {0, 0x3c00, 0xfc00, 0x7c00});
    case DType::kBFloat16:
      return fill<uint16_t>(dst, count, op, {0, 0x3f80, 0xff80, 0x7f80});
    case DType::kFloat32:
      return fill<float>(dst, count, op);
    case DType::kFloat64:
      return fill<double>(dst, count, op);
  }
}

}  // namespace hvd
