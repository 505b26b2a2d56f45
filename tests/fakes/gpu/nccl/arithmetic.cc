#include "nccl/arithmetic.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <type_traits>

namespace fake_nccl {
namespace {

struct Half {
  uint16_t bits;

  [[nodiscard]] float load() const {
    const uint32_t sign = static_cast<uint32_t>(bits & 0x8000U) << 16;
    const uint32_t exponent = (bits >> 10) & 0x1FU;
    const uint32_t fraction = bits & 0x3FFU;
    if (exponent == 31) return std::bit_cast<float>(sign | 0x7F800000U | (fraction << 13));
    if (exponent > 0) return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (fraction << 13));
    const float value = std::ldexp(static_cast<float>(fraction), -24);
    return sign == 0 ? value : -value;
  }

  static Half store(float value) {
    const auto all = std::bit_cast<uint32_t>(value);
    const auto sign = static_cast<uint16_t>((all >> 16) & 0x8000U);
    const uint32_t size = all & 0x7FFFFFFFU;
    const auto made = [&](uint32_t low) { return Half{static_cast<uint16_t>(sign | low)}; };
    if (size > 0x7F800000U) return made(0x7E00U);
    if (size >= 0x477FF000U) return made(0x7C00U);
    if (size < 0x38800000U) return made(static_cast<uint32_t>(std::nearbyint(std::ldexp(std::fabs(value), 24))));
    return made((size + 0xFFFU + ((size >> 13) & 1U) - 0x38000000U) >> 13);
  }
};

struct Bfloat {
  uint16_t bits;

  [[nodiscard]] float load() const { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

  static Bfloat store(float value) {
    const auto all = std::bit_cast<uint32_t>(value);
    if (std::isnan(value)) return {static_cast<uint16_t>((all >> 16) | 0x40U)};
    return {static_cast<uint16_t>((all + 0x7FFFU + ((all >> 16) & 1U)) >> 16)};
  }
};

template <typename T>
constexpr bool kIsHalf = std::is_same_v<T, Half> || std::is_same_v<T, Bfloat>;

template <typename T>
auto load(const std::byte* values, size_t i) {
  T value{};
  std::memcpy(&value, values + i * sizeof(T), sizeof(T));
  if constexpr (kIsHalf<T>) {
    return value.load();
  } else {
    return value;
  }
}

template <typename T, typename Wide>
void store(std::byte* values, size_t i, Wide wide) {
  T value{};
  if constexpr (kIsHalf<T>) {
    value = T::store(wide);
  } else {
    value = wide;
  }
  std::memcpy(values + i * sizeof(T), &value, sizeof(T));
}

// Integers wrap around.
template <typename T>
T combine(Op op, T a, T b) {
  if (op == kMax) return a < b ? b : a;
  if (op == kMin) return b < a ? b : a;
  if constexpr (std::is_integral_v<T>) {
    const auto x = static_cast<uint64_t>(static_cast<std::make_unsigned_t<T>>(a));
    const auto y = static_cast<uint64_t>(static_cast<std::make_unsigned_t<T>>(b));
    return static_cast<T>(op == kProd ? x * y : x + y);
  } else {
    return op == kProd ? a * b : a + b;
  }
}

template <typename T>
void reduce_as(Op op, const std::vector<const std::byte*>& given, size_t count, std::byte* result) {
  for (size_t i = 0; i < count; ++i) {
    auto value = load<T>(given[0], i);
    for (size_t rank = 1; rank < given.size(); ++rank) value = combine(op, value, load<T>(given[rank], i));
    if (op == kAvg) value = static_cast<decltype(value)>(value / static_cast<decltype(value)>(given.size()));
    store<T>(result, i, value);
  }
}

template <typename T>
void multiply_as(const std::byte* scalar, size_t count, std::byte* values) {
  const auto factor = load<T>(scalar, 0);
  for (size_t i = 0; i < count; ++i) store<T>(values, i, combine(kProd, load<T>(values, i), factor));
}

// Calls `body` with a value of the C++ type.
template <typename Body>
void with_type(Dtype dtype, const Body& body) {
  switch (dtype) {
    case kInt8:
      return body(int8_t{});
    case kUint8:
      return body(uint8_t{});
    case kInt32:
      return body(int32_t{});
    case kUint32:
      return body(uint32_t{});
    case kInt64:
      return body(int64_t{});
    case kUint64:
      return body(uint64_t{});
    case kFloat16:
      return body(Half{});
    case kFloat32:
      return body(float{});
    case kFloat64:
      return body(double{});
    case kBfloat16:
      return body(Bfloat{});
    default:
      return;
  }
}

}  // namespace

size_t size_of(Dtype dtype) {
  size_t size = 0;
  with_type(dtype, [&](auto value) { size = sizeof(value); });
  return size;
}

void reduce(Dtype dtype, Op op, const std::vector<const std::byte*>& given, size_t count, std::byte* result) {
  with_type(dtype, [&](auto value) { reduce_as<decltype(value)>(op, given, count, result); });
}

void multiply(Dtype dtype, const std::byte* scalar, size_t count, std::byte* values) {
  with_type(dtype, [&](auto value) { multiply_as<decltype(value)>(scalar, count, values); });
}

}  // namespace fake_nccl
