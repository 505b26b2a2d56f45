#include "reduce/wide_sum.h"

#include <string>

#include "base/error.h"

#define HVD_REDUCE_ISA reduce_wide
#include "reduce/codecs_impl.h"

namespace hvd {
namespace {

using reduce_wide::Int128;
using reduce_wide::load_raw;
using reduce_wide::store_raw;
using reduce_wide::WideInFloat64;
using reduce_wide::WideInInt128;

constexpr int kHalfBits = 32;

// Calls body(T{}) with the element type.
template <class Body>
void with_integer(DType dtype, const Body& body) {
  switch (dtype) {
    case DType::kUInt8:
      return body(uint8_t{});
    case DType::kInt8:
      return body(int8_t{});
    case DType::kUInt16:
      return body(uint16_t{});
    case DType::kInt16:
      return body(int16_t{});
    case DType::kUInt32:
      return body(uint32_t{});
    case DType::kInt32:
      return body(int32_t{});
    case DType::kUInt64:
      return body(uint64_t{});
    case DType::kInt64:
      return body(int64_t{});
    case DType::kBool:
    case DType::kFloat16:
    case DType::kBFloat16:
    case DType::kFloat32:
    case DType::kFloat64:
      break;
  }
  throw Error(ErrorKind::kInternal, std::string(name_of(dtype)) + " is no integer, but was to be summed up as one");
}

template <class T>
void widen_all(std::byte* words, const std::byte* src, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    const T value = load_raw<T>(src + i * sizeof(T));
    if constexpr (sizeof(T) < sizeof(int64_t)) {
      store_raw<int64_t>(words + i * sizeof(int64_t), value);
    } else {
      store_raw<int64_t>(words + 2 * i * sizeof(int64_t), static_cast<int64_t>(value >> kHalfBits));
      store_raw<int64_t>(words + (2 * i + 1) * sizeof(int64_t), static_cast<int64_t>(value & 0xffffffff));
    }
  }
}

template <class T>
void narrow_all(std::byte* dst, const std::byte* words, size_t count, Scaling scaling) {
  for (size_t i = 0; i < count; ++i) {
    std::byte* const place = dst + i * sizeof(T);
    if constexpr (sizeof(T) < sizeof(int64_t)) {
      using Wide = WideInFloat64<T>;
      const auto sum = static_cast<double>(load_raw<int64_t>(words + i * sizeof(int64_t)));
      Wide::store(place, Wide::times(sum, scaling));
    } else {
      using Wide = WideInInt128<T>;
      const Int128 upper = load_raw<int64_t>(words + 2 * i * sizeof(int64_t));
      const Int128 lower = load_raw<int64_t>(words + (2 * i + 1) * sizeof(int64_t));
      Wide::store(place, Wide::times(upper * (int64_t{1} << kHalfBits) + lower, scaling));
    }
  }
}

}  // namespace

int64_t words_of(DType dtype) { return size_of(dtype) < sizeof(int64_t) ? 1 : 2; }

void widen(DType dtype, std::byte* words, const std::byte* src, size_t count) {
  with_integer(dtype, [&](auto element) { widen_all<decltype(element)>(words, src, count); });
}

void narrow_average(DType dtype, std::byte* dst, const std::byte* words, size_t count, double factor, int divisor) {
  const Scaling scaling = integer_scaling(dtype, factor, divisor);
  with_integer(dtype, [&](auto element) { narrow_all<decltype(element)>(dst, words, count, scaling); });
}

}  // namespace hvd
