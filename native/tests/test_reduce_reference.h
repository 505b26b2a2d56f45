// What the kernels must compute, written for clarity: one element at a time, by arithmetic and not by bit tricks.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "reduce/kernels.h"

namespace hvd::testing {

struct Bool {
  uint8_t bits;
};
struct Float16 {
  static constexpr int kFractionBits = 10;
  static constexpr int kMinExponent = -14;
  static constexpr int kMaxExponent = 15;
  uint16_t bits;
};
struct BFloat16 {
  static constexpr int kFractionBits = 7;
  static constexpr int kMinExponent = -126;
  static constexpr int kMaxExponent = 127;
  uint16_t bits;
};

template <class T>
inline constexpr bool kIsHalf = std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>;
template <class T>
inline constexpr bool kIsFloating = kIsHalf<T> || std::is_floating_point_v<T>;

// Calls body(T{}) with the element type of `dtype`.
template <class Body>
void with_type(DType dtype, Body body) {
  switch (dtype) {
    case DType::kBool:
      return body(Bool{});
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
    case DType::kFloat16:
      return body(Float16{});
    case DType::kBFloat16:
      return body(BFloat16{});
    case DType::kFloat32:
      return body(float{});
    case DType::kFloat64:
      return body(double{});
  }
}

template <class H>
float decode(H half) {
  constexpr int kFraction = 1 << H::kFractionBits;
  const int fraction = half.bits % kFraction;
  const int exponent = half.bits % 0x8000 / kFraction;
  const float sign = half.bits >= 0x8000 ? -1.0f : 1.0f;
  if (exponent == H::kMaxExponent - H::kMinExponent + 2) {
    return fraction == 0 ? sign * std::numeric_limits<float>::infinity() : std::numeric_limits<float>::quiet_NaN();
  }
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(fraction), H::kMinExponent - H::kFractionBits);
  return sign * std::ldexp(static_cast<float>(kFraction + fraction), exponent - 1 + H::kMinExponent - H::kFractionBits);
}

// To nearest, ties to even: nearbyint does that for a multiple of the spacing of H around the value.
template <class H>
H encode(float value) {
  constexpr int kFraction = 1 << H::kFractionBits;
  constexpr int kInfinity = (H::kMaxExponent - H::kMinExponent + 2) * kFraction;
  const int sign = std::signbit(value) ? 0x8000 : 0;
  if (std::isnan(value)) return {static_cast<uint16_t>(sign + kInfinity + kFraction / 2)};
  if (std::isinf(value)) return {static_cast<uint16_t>(sign + kInfinity)};
  if (value == 0) return {static_cast<uint16_t>(sign)};
  const int exponent = std::max(std::ilogb(value), H::kMinExponent);
  const double steps = std::nearbyint(std::ldexp(std::fabs(double{value}), H::kFractionBits - exponent));
  // A full 2 * kFraction steps carries into the next exponent by itself, and so does a subnormal into the first.
  const int bits = (exponent - H::kMinExponent) * kFraction + static_cast<int>(steps);
  return {static_cast<uint16_t>(sign + std::min(bits, kInfinity))};
}

template <class T>
auto widen(T value) {
  if constexpr (kIsHalf<T>) {
    return decode(value);
  } else {
    return value;
  }
}

template <class V>
V combine(ReduceOp op, V a, V b) {
  if constexpr (std::is_same_v<V, Bool>) {
    const bool both = op == ReduceOp::kMin || op == ReduceOp::kProduct;
    return {static_cast<uint8_t>(both ? a.bits && b.bits : a.bits || b.bits)};
  } else {
    if constexpr (std::is_integral_v<V>) {
      if (op == ReduceOp::kSum) return static_cast<V>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
      if (op == ReduceOp::kProduct) return static_cast<V>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
    } else {
      if (op == ReduceOp::kSum) return a + b;
      if (op == ReduceOp::kProduct) return a * b;
      if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<V>::quiet_NaN();
    }
    return (op == ReduceOp::kMin ? a < b : a > b) ? a : b;
  }
}

template <class T>
T truncate(double value) {
  if (std::isnan(value)) return 0;
  const long double whole = std::trunc(value);
  if (whole <= static_cast<long double>(std::numeric_limits<T>::min())) return std::numeric_limits<T>::min();
  if (whole >= static_cast<long double>(std::numeric_limits<T>::max())) return std::numeric_limits<T>::max();
  return static_cast<T>(whole);
}

template <class T, class V>
T finish(V value, double factor) {
  if constexpr (kIsHalf<T>) {
    return encode<T>(value * static_cast<float>(factor));
  } else if constexpr (std::is_same_v<T, Bool>) {
    return value;
  } else {
    if (factor == 1) return value;
    if constexpr (std::is_integral_v<T>) return truncate<T>(static_cast<double>(value) * factor);
    if constexpr (std::is_floating_point_v<T>) return value * static_cast<T>(factor);
  }
}

// Integers digit by digit in base 2^32, so that nothing is lost.
template <class T>
T exact_average(const std::vector<std::vector<T>>& sources, size_t num_sources, size_t at, int divisor) {
  int64_t high = 0;
  int64_t low = 0;
  for (size_t j = 0; j < num_sources; ++j) {
    if constexpr (std::is_unsigned_v<T>) {
      high += static_cast<int64_t>(static_cast<uint64_t>(sources[j][at]) >> 32);
    } else {
      high += static_cast<int64_t>(sources[j][at]) >> 32;
    }
    low += static_cast<int64_t>(static_cast<uint64_t>(sources[j][at]) & 0xffffffff);
  }
  high += low >> 32;
  low &= 0xffffffff;
  // Long division, rounded down at first.
  int64_t quotient = high / divisor;
  int64_t rest = high % divisor;
  if (rest < 0) {
    rest += divisor;
    --quotient;
  }
  const int64_t tail = (rest << 32) + low;
  uint64_t result = (static_cast<uint64_t>(quotient) << 32) + static_cast<uint64_t>(tail / divisor);
  if (high < 0 && tail % divisor != 0) ++result;
  return static_cast<T>(result);
}

// Of integers for a factor of 1 only.
template <class T>
std::vector<T> expected_average(const std::vector<std::vector<T>>& sources, size_t num_sources, double factor,
                                int divisor) {
  std::vector<T> result(sources[0].size());
  for (size_t i = 0; i < result.size(); ++i) {
    if constexpr (std::is_integral_v<T>) {
      result[i] = exact_average(sources, num_sources, i, divisor);
    } else {
      auto value = widen(sources[0][i]);
      for (size_t j = 1; j < num_sources; ++j) value = combine(ReduceOp::kSum, value, widen(sources[j][i]));
      if constexpr (std::is_same_v<T, Bool>) {
        result[i] = value;
      } else {
        const auto quotient = value / static_cast<decltype(value)>(divisor);
        result[i] = finish<T>(quotient, factor);
      }
    }
  }
  return result;
}

template <class T>
std::vector<T> expected_reduce(ReduceOp op, const std::vector<std::vector<T>>& sources, size_t num_sources,
                               double factor) {
  std::vector<T> result(sources[0].size());
  for (size_t i = 0; i < result.size(); ++i) {
    auto value = widen(sources[0][i]);
    for (size_t j = 1; j < num_sources; ++j) value = combine(op, value, widen(sources[j][i]));
    result[i] = finish<T>(value, factor);
  }
  return result;
}

template <class T>
bool same_element(T a, T b) {
  if constexpr (kIsFloating<T>) {
    if (std::isnan(widen(a)) && std::isnan(widen(b))) return true;
  }
  return std::memcmp(&a, &b, sizeof(T)) == 0;
}

// Index of the first difference (NaNs are equal to each other), or `count`.
template <class T>
size_t first_difference(const std::byte* actual, const T* expected, size_t count) {
  if (count == 0 || std::memcmp(actual, expected, count * sizeof(T)) == 0) return count;
  for (size_t i = 0; i < count; ++i) {
    T element{};
    std::memcpy(&element, actual + i * sizeof(T), sizeof(T));
    if (!same_element(element, expected[i])) return i;
  }
  return count;
}

// The instruction sets of this processor, best first; puts the first one back when it goes.
class EachIsa {
 public:
  EachIsa() {
    for (const std::string_view isa : {"avx512", "avx2", "base"}) {
      if (select_kernel_isa(isa)) names_.push_back(isa);
    }
  }
  ~EachIsa() { select_kernel_isa(names_.front()); }
  EachIsa(const EachIsa&) = delete;
  EachIsa& operator=(const EachIsa&) = delete;

  [[nodiscard]] const std::vector<std::string_view>& names() const { return names_; }

 private:
  std::vector<std::string_view> names_;
};

// xorshift64: the same numbers everywhere.
class Random {
 public:
  uint64_t bits() {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return state_;
  }
  double uniform() { return static_cast<double>(bits() >> 11) * 0x1p-53; }

 private:
  uint64_t state_ = 0x9e3779b97f4a7c15;
};

// Integers: any bits. Floating point: both signs, from subnormal to large, no NaN and no infinity.
template <class T>
T random_element(Random& random) {
  if constexpr (std::is_same_v<T, Bool>) {
    return {static_cast<uint8_t>(random.bits() & 1)};
  } else if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(random.bits() >> 13);
  } else {
    const double exponent = random.bits() % 16 == 0 ? std::floor(random.uniform() * 40) - 28 : 0;
    const double value = std::ldexp(random.uniform() * 8 - 4, static_cast<int>(exponent));
    if constexpr (kIsHalf<T>) {
      return encode<T>(static_cast<float>(value));
    } else {
      return static_cast<T>(value);
    }
  }
}

}  // namespace hvd::testing
