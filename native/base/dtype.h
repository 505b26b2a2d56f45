// Element types and reduction operations: the words that every layer shares.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace hvd {

enum class DType : uint8_t {
  kBool,
  kUInt8,
  kInt8,
  kUInt16,
  kInt16,
  kUInt32,
  kInt32,
  kUInt64,
  kInt64,
  kFloat16,
  kBFloat16,
  kFloat32,
  kFloat64,
};

inline constexpr size_t kNumDTypes = 13;

// The numbers are those that user scripts see as hvd.Average, hvd.Sum, …
enum class ReduceOp : uint8_t { kAverage = 0, kSum = 1, kAdasum = 2, kMin = 3, kMax = 4, kProduct = 5 };

[[nodiscard]] size_t size_of(DType dtype);
[[nodiscard]] std::string_view name_of(DType dtype);
[[nodiscard]] std::string_view name_of(ReduceOp op);
[[nodiscard]] std::optional<DType> dtype_from_name(std::string_view name);
[[nodiscard]] bool is_floating(DType dtype);

}  // namespace hvd
