// Which ready operations travel together: a pure function.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace hvd {

struct FusionCandidate {
  uint64_t key = 0;  // operations of the same key may be fused; 0 never is
  size_t bytes = 0;
};

// Puts candidates into batches of at most `threshold` bytes, in the order in which they became ready. A batch may skip
// over candidates of other keys as long as what it holds and skips fits the threshold; those keep their order.
// Returns lists of indices. A threshold of 0 fuses nothing.
[[nodiscard]] std::vector<std::vector<size_t>> fuse(const std::vector<FusionCandidate>& candidates, size_t threshold);

}  // namespace hvd
