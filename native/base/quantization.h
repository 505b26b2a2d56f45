// How values travel between hosts in 8 bits: the words that every layer shares. The kernels are in reduce/quantize.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace hvd {

// The numbers are those of the wire and of Python.
enum class Quantization : uint8_t {
  kNone,
  kInt8,     // -127 ... 127 times the scale
  kFp8E4M3,  // 4 bits of exponent, 3 of fraction, up to 448
  kFp8E5M2,  // 5 bits of exponent, 2 of fraction, up to 57344
  kAuto,     // in what callers ask for only: the engine chooses kInt8 or kNone
};
// Of those that travel.
inline constexpr Quantization kLastQuantization = Quantization::kFp8E5M2;

// Values that share a scale. A tensor is cut into blocks from its first element on; its last block may be shorter.
inline constexpr int64_t kQuantizedBlock = 256;

[[nodiscard]] std::string_view name_of(Quantization quantization);

// Throws Error (kUsage) if there is none of this number.
[[nodiscard]] Quantization quantization_of(int64_t number);

[[nodiscard]] inline int64_t num_quantized_blocks(int64_t count) {
  return (count + kQuantizedBlock - 1) / kQuantizedBlock;
}

// Of `count` values from the beginning of a block on: a scale for each block, and a byte for each value.
[[nodiscard]] inline size_t quantized_bytes(int64_t count) {
  return static_cast<size_t>(count) + static_cast<size_t>(num_quantized_blocks(count)) * sizeof(float);
}

}  // namespace hvd
