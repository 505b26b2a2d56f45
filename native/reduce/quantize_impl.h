// The kernels of reduce/quantize.h for one instruction set. Included by kernels_impl.h, into its namespace.
#pragma once

#include "base/quantization.h"
#include "reduce/codecs_impl.h"

namespace hvd::HVD_REDUCE_ISA {

inline constexpr size_t kScaleBytes = sizeof(float);
inline constexpr int32_t kMagnitudeBits = 0x7fffffff;
inline constexpr int32_t kInfinityBits = 0x7f800000;
// Blocks of less become zeros.
inline constexpr float kLeastMagnitude = 0x1p-90f;

// A format of 8 bits:
//   kMost        the largest value
//   kMostScale   the largest scale that times kMost is finite
//   kMostBeside  the largest value in a block where infinities and NaNs have codes
//   encode       of a value of at most kMost, give or take a rounding
struct Int8 {
  static constexpr float kMost = 127.0f;
  static constexpr float kMostScale = 132104.046875f * 0x1p104f;
  static constexpr float kMostBeside = 126.0f;
  static constexpr uint8_t kInfinity = 127;
  static constexpr uint8_t kMinusInfinity = 0x81;
  static constexpr uint8_t kNan = 0x80;

  // Next to 1.5 * 2^23 the spacing of float32 is 1: the addition rounds for us.
  HVD_INLINE uint8_t encode(float value) {
    return static_cast<uint8_t>(__builtin_bit_cast(uint32_t, value + 0x1.8p23f) & 0xffu);
  }
  HVD_INLINE float decode(uint8_t code) { return static_cast<float>(static_cast<int8_t>(code)); }
};

// As the formats of the Open Compute Project's "OCP 8-bit Floating Point Specification"; kFraction: bits of fraction.
template <int kFraction, int kBias>
struct Fp8 {
  static constexpr int kDropped = 23 - kFraction;
  static constexpr int32_t kLeastNormal = 1 << kFraction;
  static constexpr float kLeastStep = 1.0f / static_cast<float>(1 << (kBias - 1 + kFraction));

  HVD_INLINE uint8_t encode(float value) {
    const uint32_t bits = __builtin_bit_cast(uint32_t, value);
    const int32_t magnitude = static_cast<int32_t>(bits & 0x7fffffffu);
    const int32_t odd = (magnitude >> kDropped) & 1;
    const int32_t normal = (magnitude - ((127 - kBias) << 23) + (1 << (kDropped - 1)) - 1 + odd) >> kDropped;
    // Where the spacing of float32 is that of subnormals the addition rounds for us.
    constexpr float kShift = kLeastStep * 0x1p23f;
    const float shifted = __builtin_bit_cast(float, magnitude) + kShift;
    const int32_t small = __builtin_bit_cast(int32_t, shifted) - __builtin_bit_cast(int32_t, kShift);
    const int32_t code = magnitude < ((128 - kBias) << 23) ? small : normal;
    return static_cast<uint8_t>(static_cast<uint32_t>(code) | (bits >> 24 & 0x80u));
  }

  HVD_INLINE float decode(uint8_t code) {
    const int32_t magnitude = code & 0x7f;
    const int32_t normal = (magnitude << kDropped) + ((127 - kBias) << 23);
    const int32_t small = __builtin_bit_cast(int32_t, static_cast<float>(magnitude) * kLeastStep);
    const auto number = static_cast<uint32_t>(magnitude < kLeastNormal ? small : normal);
    return __builtin_bit_cast(float, number | static_cast<uint32_t>(code & 0x80) << 24);
  }
};

struct E4M3 : Fp8<3, 7> {
  static constexpr float kMost = 448.0f;
  static constexpr float kMostScale = 0x1.fffffep127f / kMost;
  static constexpr float kMostBeside = 416.0f;
  static constexpr uint8_t kInfinity = 0x7e;
  static constexpr uint8_t kMinusInfinity = 0xfe;
  static constexpr uint8_t kNan = 0x7f;
};

struct E5M2 : Fp8<2, 15> {
  static constexpr float kMost = 57344.0f;
  static constexpr float kMostScale = 0x1.fffffep127f / kMost;
  static constexpr float kMostBeside = kMost;
  static constexpr uint8_t kInfinity = 0x7c;
  static constexpr uint8_t kMinusInfinity = 0xfc;
  static constexpr uint8_t kNan = 0x7e;
};

HVD_INLINE int32_t magnitude_of(float value) { return __builtin_bit_cast(int32_t, value) & kMagnitudeBits; }

// What values of a block are multiplied by, and later their codes.
struct BlockScale {
  float into;
  float back;
};

template <class Format>
HVD_INLINE BlockScale scale_of(int32_t most) {
  const float magnitude = __builtin_bit_cast(float, most);
  if (magnitude < kLeastMagnitude) return {0.0f, 0.0f};
  const float back = magnitude / Format::kMost;
  return {Format::kMost / magnitude, back < Format::kMostScale ? back : Format::kMostScale};
}

template <class Format>
__attribute__((noinline)) void quantize_with_infinities(std::byte* dst, const float* values, size_t count) {
  int32_t most = 0;
  for (size_t i = 0; i < count; ++i) {
    const int32_t magnitude = magnitude_of(values[i]);
    if (magnitude < kInfinityBits && magnitude > most) most = magnitude;
  }
  const BlockScale scale = scale_of<Format>(most);
  store_raw<uint32_t>(dst, __builtin_bit_cast(uint32_t, scale.back) | 0x80000000u);
  for (size_t i = 0; i < count; ++i) {
    const float value = values[i];
    uint8_t code = Format::kNan;
    if (magnitude_of(value) == kInfinityBits) {
      code = value > 0 ? Format::kInfinity : Format::kMinusInfinity;
    } else if (value == value) {
      const float scaled = value * scale.into;
      const float below = scaled < Format::kMostBeside ? scaled : Format::kMostBeside;
      code = Format::encode(below > -Format::kMostBeside ? below : -Format::kMostBeside);
    }
    dst[kScaleBytes + i] = static_cast<std::byte>(code);
  }
}

template <class Format>
HVD_INLINE void quantize_block(std::byte* dst, const float* values, size_t count) {
  int32_t most = 0;
  for (size_t i = 0; i < count; ++i) {
    const int32_t magnitude = magnitude_of(values[i]);
    most = magnitude > most ? magnitude : most;
  }
  if (most >= kInfinityBits) return quantize_with_infinities<Format>(dst, values, count);
  const BlockScale scale = scale_of<Format>(most);
  store_raw<float>(dst, scale.back);
  std::byte* codes = dst + kScaleBytes;
  HVD_INDEPENDENT
  for (size_t i = 0; i < count; ++i) codes[i] = static_cast<std::byte>(Format::encode(values[i] * scale.into));
}

template <class Format, bool kAdds>
__attribute__((noinline)) void dequantize_with_infinities(float* dst, const std::byte* src, size_t count) {
  const float scale = __builtin_bit_cast(float, load_raw<uint32_t>(src) & 0x7fffffffu);
  for (size_t i = 0; i < count; ++i) {
    const auto code = static_cast<uint8_t>(src[kScaleBytes + i]);
    float value = Format::decode(code) * scale;
    if (code == Format::kInfinity) value = __builtin_inff();
    if (code == Format::kMinusInfinity) value = -__builtin_inff();
    if (code == Format::kNan) value = __builtin_nanf("");
    dst[i] = kAdds ? dst[i] + value : value;
  }
}

template <class Format, bool kAdds>
HVD_INLINE void dequantize_block(float* dst, const std::byte* src, size_t count) {
  const uint32_t bits = load_raw<uint32_t>(src);
  if ((bits & 0x80000000u) != 0) return dequantize_with_infinities<Format, kAdds>(dst, src, count);
  const float scale = __builtin_bit_cast(float, bits);
  const std::byte* codes = src + kScaleBytes;
  HVD_INDEPENDENT
  for (size_t i = 0; i < count; ++i) {
    const float value = Format::decode(static_cast<uint8_t>(codes[i])) * scale;
    dst[i] = kAdds ? dst[i] + value : value;
  }
}

// The loops over a whole block have a fixed length.
template <class Format>
void quantize_kernel(std::byte* dst, const float* values, size_t count) {
  constexpr auto kBlock = static_cast<size_t>(kQuantizedBlock);
  for (; count >= kBlock; count -= kBlock, values += kBlock, dst += kBlock + kScaleBytes) {
    quantize_block<Format>(dst, values, kBlock);
  }
  if (count > 0) quantize_block<Format>(dst, values, count);
}

template <class Format, bool kAdds>
void dequantize_kernel(float* dst, const std::byte* src, size_t count) {
  constexpr auto kBlock = static_cast<size_t>(kQuantizedBlock);
  for (; count >= kBlock; count -= kBlock, dst += kBlock, src += kBlock + kScaleBytes) {
    dequantize_block<Format, kAdds>(dst, src, kBlock);
  }
  if (count > 0) dequantize_block<Format, kAdds>(dst, src, count);
}

template <bool kAdds>
void keep_error_kernel(float* left, const float* wanted, const float* sent, size_t count) {
  HVD_INDEPENDENT
  for (size_t i = 0; i < count; ++i) {
    const float error = wanted[i] - sent[i] + (kAdds ? left[i] : 0.0f);
    left[i] = magnitude_of(error) < kInfinityBits ? error : 0.0f;
  }
}

template <class Format>
constexpr QuantizeRow quantize_row() {
  return {&quantize_kernel<Format>, &dequantize_kernel<Format, false>, &dequantize_kernel<Format, true>};
}

}  // namespace hvd::HVD_REDUCE_ISA
