// Into which chunks a batch is cut, on all ranks alike. Nothing here depends on this rank.
#pragma once

#include <cstdint>
#include <functional>

#include "plan/plan.h"

namespace hvd::staged {

// Each block of a batch (what one rank gives or gets, or the whole vector) is cut into parts of `quantum` elements;
// chunk i is made of the i-th part of every block that has so many.
struct Cut {
  int64_t quantum = 1;
  int64_t num_chunks = 0;
};

// Elements of host memory that a chunk may take: `most` always, `least` if there is enough.
struct CutLimits {
  int64_t least = 1;
  int64_t most = 1;
};

// `footprint(q)`: elements of host memory that a chunk takes where it takes most, if its parts have q elements; it
// never falls when q rises. `longest`: elements of the longest block. Throws Error (kUsage) if not even one element of
// each block fits.
[[nodiscard]] Cut cut(const std::function<int64_t(int64_t quantum)>& footprint, int64_t longest,
                      const CutLimits& limits);

// What a chunk takes of a block of `count` elements.
[[nodiscard]] Range part_of(int64_t count, const Cut& cut, int64_t chunk);

}  // namespace hvd::staged
