// Arrays of any dtype whose elements a test sets and reads as doubles, and operations on them.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "engine/submission/operation.h"

namespace hvd::testing {

class Array {
 public:
  Array(DType dtype, Shape shape);

  [[nodiscard]] DType dtype() const { return dtype_; }
  [[nodiscard]] int64_t count() const { return count_; }
  [[nodiscard]] const std::vector<std::byte>& bytes() const { return bytes_; }
  [[nodiscard]] Buffer view() { return {bytes_.data(), dtype_, shape_}; }
  [[nodiscard]] double get(int64_t index) const;
  // The value must be exact in the dtype.
  void set(int64_t index, double value);
  // Writes the first `period` elements again and again until the end.
  void repeat(int64_t period);
  // How many elements to look at: the first `period` if the others repeat them to the bit, else all.
  [[nodiscard]] int64_t num_distinct(int64_t period) const;

 private:
  DType dtype_;
  Shape shape_;
  int64_t count_;
  std::vector<std::byte> bytes_;
};

// Element `index` of a buffer.
[[nodiscard]] double element(DType dtype, const std::byte* data, int64_t index);

// What rank `rank` gives at `index`: small whole numbers, exact in every dtype, also their reduction over 8 ranks. The
// numbers repeat after kPeriod elements.
inline constexpr int64_t kPeriod = 45;
[[nodiscard]] double sample(DType dtype, ReduceOp op, int rank, int64_t index);
[[nodiscard]] Array samples(DType dtype, ReduceOp op, int rank, const Shape& shape);

// The reduction over ranks 0 … size - 1 at `index`, before any factor.
[[nodiscard]] double reduced(DType dtype, ReduceOp op, int size, int64_t index);

[[nodiscard]] std::shared_ptr<Operation> make_allreduce(const std::string& name, std::vector<Buffer> inputs,
                                                        std::vector<Buffer> outputs, ReduceOp op = ReduceOp::kSum);

}  // namespace hvd::testing
