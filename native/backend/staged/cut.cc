#include "backend/staged/cut.h"

#include <algorithm>
#include <string>

#include "base/error.h"

namespace hvd::staged {
namespace {

// So that copies in, the exchange, and copies back overlap in mid-sized tensors too.
constexpr int64_t kChunksAtLeast = 4;
// Copy engines like addresses that are multiples of this, in elements of any size.
constexpr int64_t kAlignment = 512;

}  // namespace

Cut cut(const std::function<int64_t(int64_t)>& footprint, int64_t longest, const CutLimits& limits) {
  if (longest == 0) return {};
  if (footprint(1) > limits.most) {
    throw Error(ErrorKind::kUsage, "a chunk of " + std::to_string(limits.most) + " elements is too small for " +
                                       std::to_string(footprint(1)) +
                                       " ranks: let chunks of tensors on GPUs have more bytes");
  }
  const int64_t target =
      std::clamp(footprint(longest) / kChunksAtLeast, std::min(limits.least, limits.most), limits.most);
  int64_t fits = 1;
  int64_t too_long = longest + 1;
  while (fits + 1 < too_long) {
    const int64_t middle = fits + (too_long - fits) / 2;
    (footprint(middle) <= target ? fits : too_long) = middle;
  }
  if (fits < longest && fits > kAlignment) fits -= fits % kAlignment;
  return {.quantum = fits, .num_chunks = (longest + fits - 1) / fits};
}

Range part_of(int64_t count, const Cut& cut, int64_t chunk) {
  const int64_t begin = std::min(count, chunk * cut.quantum);
  return {begin, std::min(count, begin + cut.quantum)};
}

}  // namespace hvd::staged
