#include "engine/agreement/fuser.h"

namespace hvd {

std::vector<std::vector<size_t>> fuse(const std::vector<FusionCandidate>& candidates, size_t threshold) {
  std::vector<std::vector<size_t>> batches;
  std::vector<bool> taken(candidates.size(), false);
  for (size_t first = 0; first < candidates.size(); ++first) {
    if (taken[first]) continue;
    std::vector<size_t> batch{first};
    const FusionCandidate& head = candidates[first];
    size_t used = head.bytes;
    for (size_t i = first + 1; i < candidates.size() && head.key != 0 && used < threshold; ++i) {
      if (taken[i]) continue;
      if (candidates[i].key == head.key && used + candidates[i].bytes <= threshold) {
        batch.push_back(i);
        taken[i] = true;
      }
      used += candidates[i].bytes;
    }
    batches.push_back(std::move(batch));
  }
  return batches;
}

}  // namespace hvd
