// The tensors of a quantized allreduce seen as one sequence of blocks. Each tensor begins with a block of its own, so
// that its result does not depend on what travels with it.
#pragma once

#include <algorithm>
#include <vector>

#include "backend/backend.h"
#include "base/quantization.h"
#include "plan/plan.h"

namespace hvd {

// Neighbors in one tensor, from the beginning of a block on.
struct BlockRun {
  std::byte* input = nullptr;
  std::byte* output = nullptr;
  float* residual = nullptr;  // or none
  int64_t count = 0;          // elements
  int64_t blocks = 0;
};

class QuantizedVector {
 public:
  explicit QuantizedVector(const Batch& batch) : element_bytes_(size_of(batch.dtype)) {
    for (size_t i = 0; i < batch.inputs.size(); ++i) {
      const int64_t count = batch.inputs[i].count;
      if (count == 0) continue;
      std::byte* residual = batch.residuals.empty() ? nullptr : batch.residuals[i].data;
      tensors_.push_back(
          {batch.inputs[i].data, batch.outputs[i].data, reinterpret_cast<float*>(residual), blocks_, count_, count});
      blocks_ += num_quantized_blocks(count);
      count_ += count;
    }
  }

  [[nodiscard]] int64_t blocks() const { return blocks_; }

  // Of a range of blocks.
  [[nodiscard]] int64_t count_of(const Range& range) const {
    return range.size() == 0 ? 0 : elements_before(range.end) - elements_before(range.begin);
  }

  // The block `at`, and those behind it in the same tensor, but no more than `most`.
  [[nodiscard]] BlockRun run_at(int64_t at, int64_t most) const {
    const Tensor& tensor = tensor_of(at);
    const int64_t begin = (at - tensor.first_block) * kQuantizedBlock;
    const int64_t count = std::min(most * kQuantizedBlock, tensor.count - begin);
    const auto offset = static_cast<size_t>(begin) * element_bytes_;
    return {tensor.input + offset, tensor.output + offset,
            tensor.residual == nullptr ? nullptr : tensor.residual + begin, count, num_quantized_blocks(count)};
  }

 private:
  struct Tensor {
    std::byte* input;
    std::byte* output;
    float* residual;
    int64_t first_block;
    int64_t first_element;
    int64_t count;
  };

  [[nodiscard]] const Tensor& tensor_of(int64_t block) const {
    const auto after = std::upper_bound(tensors_.begin(), tensors_.end(), block,
                                        [](int64_t value, const Tensor& tensor) { return value < tensor.first_block; });
    return *(after - 1);
  }

  [[nodiscard]] int64_t elements_before(int64_t block) const {
    if (block == blocks_) return count_;
    const Tensor& tensor = tensor_of(block);
    return tensor.first_element + (block - tensor.first_block) * kQuantizedBlock;
  }

  size_t element_bytes_;
  int64_t blocks_ = 0;
  int64_t count_ = 0;
  std::vector<Tensor> tensors_;
};

}  // namespace hvd
