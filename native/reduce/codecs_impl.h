// How an element type is read, scaled and written. Included by kernels_impl.h, once for each instruction set, and by
// adasum.cc, into the namespace HVD_REDUCE_ISA.
//
// A codec works on units of kLanes consecutive elements:
//   Value        a unit in registers, in the type that operations compute with
//   Acc          the codec that keeps a Value in a block buffer as it is
//   kScales      whether the value is divided or multiplied on the way out, by times()
//   load, store  from and to memory of any alignment
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#if defined(__F16C__)
#include <immintrin.h>
#endif

#include "reduce/kernel_table.h"

#define HVD_INLINE static inline __attribute__((always_inline))

// Before a loop whose iterations do not depend on each other.
#if defined(__clang__)
#define HVD_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define HVD_INDEPENDENT _Pragma("GCC ivdep")
#endif

namespace hvd::HVD_REDUCE_ISA {

template <class T>
HVD_INLINE T load_raw(const std::byte* p) {
  T value;
  __builtin_memcpy(&value, p, sizeof(T));
  return value;
}

template <class T>
HVD_INLINE void store_raw(std::byte* p, T value) {
  __builtin_memcpy(p, &value, sizeof(T));
}

// The type as it is.
template <class T>
struct Plain {
  using Value = T;
  using Acc = Plain;
  static constexpr size_t kLanes = 1;
  static constexpr size_t kUnitBytes = sizeof(T);
  static constexpr bool kScales = false;

  HVD_INLINE Value load(const std::byte* p) { return load_raw<T>(p); }
  HVD_INLINE void store(std::byte* p, Value value) { store_raw<T>(p, value); }
};

// What integers are multiplied by in float64. An integer times NaN is to be 0, and 0 times infinity: with these two no
// product is NaN, and the others stay beyond the end of every integer type.
HVD_INLINE double integer_factor(double factor) {
  constexpr double kLargest = __DBL_MAX__;
  const double number = factor != factor ? 0.0 : factor;
  return number > kLargest ? kLargest : number < -kLargest ? -kLargest : number;
}

// Truncates toward zero; what T cannot hold becomes its nearest end. `value` is not NaN. The comparisons are those of
// the instructions for minimum and maximum.
template <class T>
HVD_INLINE T saturate(double value) {
  constexpr int kValueBits = 8 * sizeof(T) - (std::is_signed_v<T> ? 1 : 0);
  constexpr T kMax = static_cast<T>(~uint64_t{0} >> (64 - kValueBits));
  constexpr T kMin = std::is_signed_v<T> ? static_cast<T>(~kMax) : T{0};
  constexpr double kStart = static_cast<double>(kMin);
  const double from_start = kStart > value ? kStart : value;
  if constexpr (sizeof(T) < sizeof(double)) {
    constexpr double kLast = static_cast<double>(kMax);
    return static_cast<T>(kLast < from_start ? kLast : from_start);
  } else {
    // One past kMax, which unlike kMax itself is exact in float64.
    constexpr double kEnd = 2.0 * static_cast<double>(uint64_t{1} << (kValueBits - 1));
    const bool fits = from_start < kEnd;
    const T inside = static_cast<T>(fits ? from_start : 0.0);
    return fits ? inside : kMax;
  }
}

// Floating point by the factor rounded to T, as frameworks do; integers in float64, then truncated.
template <class T>
struct Scaled : Plain<T> {
  static constexpr bool kScales = true;

  HVD_INLINE T times(T value, Scaling scaling) {
    if constexpr (std::is_integral_v<T>) {
      return saturate<T>(static_cast<double>(value) * integer_factor(scaling.factor));
    } else {
      return value * static_cast<T>(scaling.factor);
    }
  }
};

// An average of integers of up to 32 bits: float64 holds their sums exactly for two million ranks. To multiply them by
// integer_average_factor() is twice as fast as to divide them. Up to half a million ranks, an average that is no whole
// number is too far from the next one to be rounded there.
template <class T>
struct WideInFloat64 {
  using Value = double;
  using Acc = Plain<double>;
  static constexpr size_t kLanes = 1;
  static constexpr size_t kUnitBytes = sizeof(T);
  static constexpr bool kScales = true;

  HVD_INLINE Value load(const std::byte* p) { return static_cast<double>(load_raw<T>(p)); }
  HVD_INLINE Value times(Value value, Scaling scaling) { return value * integer_factor(scaling.factor); }
  HVD_INLINE void store(std::byte* p, Value value) { store_raw<T>(p, saturate<T>(value)); }
};

__extension__ using Int128 = __int128;

// An average of integers of 64 bits.
template <class T>
struct WideInInt128 {
  using Value = Int128;
  using Acc = Plain<Int128>;
  static constexpr size_t kLanes = 1;
  static constexpr size_t kUnitBytes = sizeof(T);
  static constexpr bool kScales = true;
  static constexpr T kMax = static_cast<T>(~uint64_t{0} >> (std::is_signed_v<T> ? 1 : 0));
  static constexpr T kMin = std::is_signed_v<T> ? static_cast<T>(~kMax) : T{0};

  HVD_INLINE Value load(const std::byte* p) { return load_raw<T>(p); }
  HVD_INLINE Value times(Value value, Scaling scaling) {
    if (scaling.divisor == 1.0) {
      return scaling.factor == 1.0 ? value : saturate<T>(static_cast<double>(value) * integer_factor(scaling.factor));
    }
    const auto divisor = static_cast<int64_t>(scaling.divisor);
    // Most sums fit in 64 bits, whose division is several times faster.
    const auto narrow = static_cast<T>(value);
    return narrow == value ? narrow / static_cast<T>(divisor) : divided(value, divisor);
  }
  // Not inlined: clang would compute both quotients of each element, to take several elements at once.
  __attribute__((noinline)) static Int128 divided(Int128 value, int64_t divisor) { return value / divisor; }
  HVD_INLINE void store(std::byte* p, Value value) {
    store_raw<T>(p, value > kMax ? kMax : value < kMin ? kMin : static_cast<T>(value));
  }
};

// Two neighbors, taken apart and put together again in 32-bit words: no lane ever moves.
struct FloatPair {
  float low;
  float high;
};

// Member by member: gcc does not vectorise a loop that copies the whole struct.
struct PlainPair {
  using Value = FloatPair;
  static constexpr size_t kUnitBytes = sizeof(FloatPair);
  static constexpr bool kScales = false;

  HVD_INLINE Value load(const std::byte* p) { return {load_raw<float>(p), load_raw<float>(p + sizeof(float))}; }

  HVD_INLINE void store(std::byte* p, Value value) {
    store_raw<float>(p, value.low);
    store_raw<float>(p + sizeof(float), value.high);
  }
};

struct BFloat16 {
  using Value = FloatPair;
  using Acc = PlainPair;
  static constexpr size_t kLanes = 2;
  static constexpr size_t kUnitBytes = 4;
  static constexpr bool kScales = true;

  HVD_INLINE Value load(const std::byte* p) {
    const uint32_t word = load_raw<uint32_t>(p);
    return {__builtin_bit_cast(float, word << 16), __builtin_bit_cast(float, word & 0xffff0000u)};
  }

  HVD_INLINE void store(std::byte* p, Value value) {
    store_raw<uint32_t>(p, (round(value.low) >> 16) | (round(value.high) & 0xffff0000u));
  }

  HVD_INLINE Value times(Value value, Scaling scaling) {
    const double factor = scaling.factor;
    // A NaN as factor must not bring a payload of its own, see round().
    const float narrow = factor != factor ? __builtin_nanf("") : static_cast<float>(factor);
    return {value.low * narrow, value.high * narrow};
  }

  // The upper 16 bits are the result. A NaN stays what it is: the lower 16 bits of those that come from bfloat16 or
  // arise in arithmetic are 0, so that nothing is carried over.
  HVD_INLINE uint32_t round(float value) {
    const uint32_t bits = __builtin_bit_cast(uint32_t, value);
    return bits + 0x7fffu + ((bits >> 16) & 1u);
  }
};

#if defined(__F16C__)

struct Float16 {
#if defined(__AVX512F__)
  static constexpr size_t kLanes = 16;
  using Stored = __m256i_u;
#else
  static constexpr size_t kLanes = 8;
  using Stored = __m128i_u;
#endif
  using Value __attribute__((vector_size(4 * kLanes))) = float;
  using Acc = Plain<Value>;
  static constexpr size_t kUnitBytes = 2 * kLanes;
  static constexpr bool kScales = true;

#if defined(__AVX512F__)
  static constexpr __mmask16 kAllLanes = 0xffff;  // the forms without a mask make gcc 12 warn

  HVD_INLINE Value load(const std::byte* p) { return _mm512_maskz_cvtph_ps(kAllLanes, load_raw<Stored>(p)); }
  // Not with the flag that suppresses exceptions: that form of the instruction cannot write to memory.
  HVD_INLINE void store(std::byte* p, Value value) {
    store_raw<Stored>(p, _mm512_maskz_cvtps_ph(kAllLanes, value, _MM_FROUND_TO_NEAREST_INT));
  }
#else
  HVD_INLINE Value load(const std::byte* p) { return _mm256_cvtph_ps(load_raw<Stored>(p)); }
  HVD_INLINE void store(std::byte* p, Value value) {
    store_raw<Stored>(p, _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT));
  }
#endif

  HVD_INLINE Value times(Value value, Scaling scaling) { return value * static_cast<float>(scaling.factor); }
};

// The second of two values where one is NaN, or both are zeros. Not comparisons: clang would choose between the halves
// and convert them once more.
#if defined(__AVX512F__)
HVD_INLINE Float16::Value lesser(Float16::Value a, Float16::Value b) {
  return _mm512_maskz_min_ps(Float16::kAllLanes, a, b);
}
HVD_INLINE Float16::Value greater(Float16::Value a, Float16::Value b) {
  return _mm512_maskz_max_ps(Float16::kAllLanes, a, b);
}
#else
HVD_INLINE Float16::Value lesser(Float16::Value a, Float16::Value b) { return _mm256_min_ps(a, b); }
HVD_INLINE Float16::Value greater(Float16::Value a, Float16::Value b) { return _mm256_max_ps(a, b); }
#endif

#else

// Software conversion without branches, so that loops over it still vectorise. Magnitudes are signed because
// SSE2 only compares signed integers.
struct Float16 {
  using Value = float;
  using Acc = Plain<float>;
  static constexpr size_t kLanes = 1;
  static constexpr size_t kUnitBytes = 2;
  static constexpr bool kScales = true;

  HVD_INLINE Value load(const std::byte* p) {
    const uint32_t half = load_raw<uint16_t>(p);
    const int32_t magnitude = static_cast<int32_t>(half & 0x7fffu);
    const int32_t bias = magnitude > 0x7bff ? (255 - 31) << 23 : (127 - 15) << 23;
    const int32_t normal = (magnitude << 13) + bias;
    // A subnormal counts units of 2^-24.
    const float small = static_cast<float>(magnitude) * 0x1p-24f;
    const int32_t number = magnitude < 0x400 ? __builtin_bit_cast(int32_t, small) : normal;
    const uint32_t quiet = magnitude > 0x7c00 ? 0x400000u : 0u;
    return __builtin_bit_cast(float, static_cast<uint32_t>(number) | quiet | (half & 0x8000u) << 16);
  }

  HVD_INLINE void store(std::byte* p, Value value) {
    const uint32_t bits = __builtin_bit_cast(uint32_t, value);
    const int32_t magnitude = static_cast<int32_t>(bits & 0x7fffffffu);
    // A carry out of the fraction moves to the next exponent, at the top to infinity: just what rounding wants.
    const int32_t normal = (magnitude - ((127 - 15) << 23) + 0xfff + ((magnitude >> 13) & 1)) >> 13;
    // Next to 0.5 the spacing of float32 is 2^-24, that of float16 subnormals: the addition rounds for us.
    const float shifted = __builtin_bit_cast(float, magnitude) + 0.5f;
    const int32_t small = __builtin_bit_cast(int32_t, shifted) - 0x3f000000;
    const int32_t nan = 0x7e00 | ((magnitude >> 13) & 0x3ff);
    int32_t half = magnitude < 0x38800000 ? small : normal;  // below 2^-14
    half = magnitude > 0x477fffff ? 0x7c00 : half;           // from 2^16
    half = magnitude > 0x7f800000 ? nan : half;
    store_raw<uint16_t>(p, static_cast<uint16_t>(static_cast<uint32_t>(half) | ((bits >> 16) & 0x8000u)));
  }

  HVD_INLINE Value times(Value value, Scaling scaling) { return value * static_cast<float>(scaling.factor); }
};

#endif

// Divided, and then multiplied, by the codec C: halves on the float32 that was never rounded in between.
template <class C>
struct Divided : C {
  HVD_INLINE typename C::Value times(typename C::Value value, Scaling scaling) {
    if constexpr (std::is_same_v<typename C::Value, double>) {
      return C::times(value / scaling.divisor, scaling);
    } else {
      const auto divisor = static_cast<float>(scaling.divisor);
      if constexpr (std::is_same_v<typename C::Value, FloatPair>) {
        return C::times({value.low / divisor, value.high / divisor}, scaling);
      } else {
        return C::times(value / divisor, scaling);
      }
    }
  }
};

}  // namespace hvd::HVD_REDUCE_ISA
