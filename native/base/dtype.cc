#include "base/dtype.h"

#include <array>

namespace hvd {
namespace {

struct DTypeFacts {
  std::string_view name;
  size_t size;
};

constexpr std::array<DTypeFacts, kNumDTypes> kFacts{{{"bool", 1},
                                                     {"uint8", 1},
                                                     {"int8", 1},
                                                     {"uint16", 2},
                                                     {"int16", 2},
                                                     {"uint32", 4},
                                                     {"int32", 4},
                                                     {"uint64", 8},
                                                     {"int64", 8},
                                                     {"float16", 2},
                                                     {"bfloat16", 2},
                                                     {"float32", 4},
                                                     {"float64", 8}}};

constexpr std::array<std::string_view, 6> kOpNames{"Average", "Sum", "Adasum", "Min", "Max", "Product"};

}  // namespace

size_t size_of(DType dtype) { return kFacts[static_cast<size_t>(dtype)].size; }

std::string_view name_of(DType dtype) { return kFacts[static_cast<size_t>(dtype)].name; }

std::string_view name_of(ReduceOp op) { return kOpNames[static_cast<size_t>(op)]; }

std::optional<DType> dtype_from_name(std::string_view name) {
  for (size_t i = 0; i < kFacts.size(); ++i) {
    if (kFacts[i].name == name) return static_cast<DType>(i);
  }
  return std::nullopt;
}

bool is_floating(DType dtype) { return dtype >= DType::kFloat16; }

}  // namespace hvd
