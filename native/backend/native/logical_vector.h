// Several runs of memory seen as one vector.
#pragma once

#include <algorithm>
#include <vector>

#include "backend/backend.h"
#include "plan/plan.h"

namespace hvd {

class LogicalVector {
 public:
  LogicalVector(const std::vector<Extent>& extents, size_t element_bytes) : element_bytes_(element_bytes) {
    for (const Extent& extent : extents) {
      if (extent.count == 0) continue;
      runs_.push_back({extent.data, count_, extent.count});
      count_ += extent.count;
    }
  }

  [[nodiscard]] int64_t count() const { return count_; }

  // Where element `at` lies, and how many of the elements from there on are contiguous.
  [[nodiscard]] Extent locate(int64_t at) const {
    const auto after = std::upper_bound(runs_.begin(), runs_.end(), at,
                                        [](int64_t value, const Run& run) { return value < run.begin; });
    const Run& run = *(after - 1);
    return {run.data + static_cast<size_t>(at - run.begin) * element_bytes_, run.begin + run.count - at};
  }

 private:
  struct Run {
    std::byte* data;
    int64_t begin;
    int64_t count;
  };

  size_t element_bytes_;
  int64_t count_ = 0;
  std::vector<Run> runs_;
};

}  // namespace hvd
