#include "testing/array.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "testing/world.h"

namespace hvd::testing {
namespace {

// No subnormal numbers.
uint16_t float16_of(double value) {
  if (value == 0.0) return 0;
  if (std::isnan(value)) return 0x7e00;
  if (std::isinf(value)) return value < 0 ? 0xfc00 : 0x7c00;
  int exponent = 0;
  const double mantissa = std::frexp(std::abs(value), &exponent);
  const auto bits = static_cast<uint16_t>((exponent + 14) << 10 | static_cast<int>((2 * mantissa - 1) * 1024));
  return static_cast<uint16_t>(bits | (value < 0 ? 0x8000 : 0));
}

double float16_value(uint16_t bits) {
  if ((bits & 0x7fff) == 0) return 0.0;
  if ((bits & 0x7fff) > 0x7c00) return NAN;
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if ((bits & 0x7fff) == 0x7c00) return (bits & 0x8000) != 0 ? -kInfinity : kInfinity;
  const double magnitude = std::ldexp(1.0 + (bits & 0x3ff) / 1024.0, (bits >> 10 & 0x1f) - 15);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

uint16_t bfloat16_of(double value) {
  return static_cast<uint16_t>(std::bit_cast<uint32_t>(static_cast<float>(value)) >> 16);
}

double bfloat16_value(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

template <typename T>
double load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(value));
  return static_cast<double>(value);
}

template <typename T>
void store(std::byte* at, T value) {
  std::memcpy(at, &value, sizeof(value));
}

}  // namespace

Array::Array(DType dtype, Shape shape)
    : dtype_(dtype),
      shape_(std::move(shape)),
      count_(num_elements(shape_)),
      bytes_(static_cast<size_t>(count_) * size_of(dtype)) {}

void Array::repeat(int64_t period) {
  const size_t first = static_cast<size_t>(period) * size_of(dtype_);
  for (size_t at = first; at < bytes_.size(); at += first) {
    std::memcpy(bytes_.data() + at, bytes_.data(), std::min(first, bytes_.size() - at));
  }
}

int64_t Array::num_distinct(int64_t period) const {
  const size_t first = static_cast<size_t>(period) * size_of(dtype_);
  if (bytes_.size() <= first) return count_;
  return std::memcmp(bytes_.data(), bytes_.data() + first, bytes_.size() - first) == 0 ? period : count_;
}

double Array::get(int64_t index) const { return element(dtype_, bytes_.data(), index); }

double element(DType dtype, const std::byte* data, int64_t index) {
  const std::byte* at = data + static_cast<size_t>(index) * size_of(dtype);
  switch (dtype) {
    case DType::kBool:
    case DType::kUInt8:
      return load<uint8_t>(at);
    case DType::kInt8:
      return load<int8_t>(at);
    case DType::kUInt16:
      return load<uint16_t>(at);
    case DType::kInt16:
      return load<int16_t>(at);
    case DType::kUInt32:
      return load<uint32_t>(at);
    case DType::kInt32:
      return load<int32_t>(at);
    case DType::kUInt64:
      return load<uint64_t>(at);
    case DType::kInt64:
      return load<int64_t>(at);
    case DType::kFloat16:
      return float16_value(static_cast<uint16_t>(load<uint16_t>(at)));
    case DType::kBFloat16:
      return bfloat16_value(static_cast<uint16_t>(load<uint16_t>(at)));
    case DType::kFloat32:
      return load<float>(at);
    case DType::kFloat64:
      return load<double>(at);
  }
  return NAN;
}

void Array::set(int64_t index, double value) {
  std::byte* at = bytes_.data() + static_cast<size_t>(index) * size_of(dtype_);
  switch (dtype_) {
    case DType::kFloat16:
      return store(at, float16_of(value));
    case DType::kBFloat16:
      return store(at, bfloat16_of(value));
    case DType::kFloat32:
      return store(at, static_cast<float>(value));
    case DType::kFloat64:
      return store(at, value);
    default:
      break;
  }
  const auto whole = static_cast<int64_t>(value);
  std::memcpy(at, &whole, size_of(dtype_));  // little-endian two's complement
}

double sample(DType dtype, ReduceOp op, int rank, int64_t index) {
  const int64_t place = index % kPeriod;
  if (dtype == DType::kBool) return static_cast<double>((rank + place) % 2);
  if (op == ReduceOp::kProduct) return (rank + place) % 5 == 0 ? 2.0 : 1.0;
  const bool has_sign = is_floating(dtype) || dtype == DType::kInt8 || dtype == DType::kInt16 ||
                        dtype == DType::kInt32 || dtype == DType::kInt64;
  const auto value = static_cast<double>((rank * 7 + place * 2) % 9);
  return has_sign ? value - 4 : value;
}

Array samples(DType dtype, ReduceOp op, int rank, const Shape& shape) {
  Array array(dtype, shape);
  for (int64_t i = 0; i < std::min(kPeriod, array.count()); ++i) array.set(i, sample(dtype, op, rank, i));
  array.repeat(kPeriod);
  return array;
}

double reduced(DType dtype, ReduceOp op, int size, int64_t index) {
  double value = sample(dtype, op, 0, index);
  for (int rank = 1; rank < size; ++rank) {
    const double other = sample(dtype, op, rank, index);
    if (op == ReduceOp::kMin) {
      value = std::min(value, other);
    } else if (op == ReduceOp::kMax || (dtype == DType::kBool && op != ReduceOp::kProduct)) {
      value = std::max(value, other);
    } else if (op == ReduceOp::kProduct) {
      value *= other;
    } else {
      value += other;
    }
  }
  return value;
}

std::shared_ptr<Operation> make_allreduce(const std::string& name, std::vector<Buffer> inputs,
                                          std::vector<Buffer> outputs, ReduceOp op) {
  auto operation = make_operation(OpKind::kAllreduce, name, std::move(inputs), std::move(outputs));
  operation->request.reduce_op = op;
  return operation;
}

}  // namespace hvd::testing
