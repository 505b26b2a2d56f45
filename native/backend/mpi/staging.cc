#include "backend/mpi/staging.h"

#include <algorithm>
#include <utility>

namespace hvd::mpi {
namespace {

constexpr size_t kMostKept = 4;  // two batches are in flight, with an input and an output each at most

}  // namespace

Staging StagingPool::take(size_t bytes) {
  auto best = free_.end();
  for (auto candidate = free_.begin(); candidate != free_.end(); ++candidate) {
    if (candidate->bytes < bytes) continue;
    if (best == free_.end() || candidate->bytes < best->bytes) best = candidate;
  }
  if (best == free_.end()) return {std::make_unique_for_overwrite<std::byte[]>(bytes), bytes};
  Staging found = std::move(*best);
  free_.erase(best);
  return found;
}

void StagingPool::give_back(Staging staging) {
  if (staging.bytes == 0) return;
  free_.push_back(std::move(staging));
  if (free_.size() <= kMostKept) return;
  const auto smaller = [](const Staging& a, const Staging& b) { return a.bytes < b.bytes; };
  free_.erase(std::min_element(free_.begin(), free_.end(), smaller));
}

}  // namespace hvd::mpi
