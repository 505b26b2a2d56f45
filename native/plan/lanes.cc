#include "plan/lanes.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <string>
#include <utility>

#include "base/error.h"

namespace hvd {

Range share_of(int64_t count, int rank, int size) {
  const int64_t smaller = count / size;
  const int64_t num_longer = count % size;
  const int64_t begin = rank * smaller + std::min<int64_t>(rank, num_longer);
  return {begin, begin + smaller + (rank < num_longer ? 1 : 0)};
}

void check_context(const PlanContext& context) {
  if (!context.hosts.empty() && context.hosts.size() != static_cast<size_t>(context.size)) {
    throw Error(ErrorKind::kInternal, "a plan for " + std::to_string(context.size) + " ranks was given the hosts of " +
                                          std::to_string(context.hosts.size()) + "; please report this");
  }
  if (context.size > 0 && context.rank >= 0 && context.rank < context.size && context.chunk > 0) return;
  throw Error(ErrorKind::kInternal, "a plan was asked for rank " + std::to_string(context.rank) + " of " +
                                        std::to_string(context.size) + " with frames of " +
                                        std::to_string(context.chunk) + " elements; please report this");
}

void check_counts(const PlanContext& context, const std::vector<int64_t>& counts) {
  if (counts.size() != static_cast<size_t>(context.size)) {
    throw Error(ErrorKind::kInternal, "a plan for " + std::to_string(context.size) + " ranks was given " +
                                          std::to_string(counts.size()) + " counts; please report this");
  }
  const auto negative = std::find_if(counts.begin(), counts.end(), [](int64_t count) { return count < 0; });
  if (negative == counts.end()) return;
  throw Error(ErrorKind::kInternal, "a plan was given " + std::to_string(*negative) + " elements for rank " +
                                        std::to_string(negative - counts.begin()) + "; please report this");
}

size_t check_num_lanes(int64_t num_lanes, const PlanContext& context) {
  constexpr int64_t kMaxLanes = int64_t{std::numeric_limits<uint32_t>::max()} + 1;
  if (num_lanes <= kMaxLanes) return static_cast<size_t>(num_lanes);
  throw Error(ErrorKind::kUsage, "this operation on " + std::to_string(context.size) + " ranks needs " +
                                     std::to_string(num_lanes) + " lanes with frames of " +
                                     std::to_string(context.chunk) + " elements, and " + std::to_string(kMaxLanes) +
                                     " are possible: split the tensor or use larger frames");
}

Step send_own(const Range& source, const Range& range, std::vector<int> send_to) {
  return {.receive_from = {}, .send_to = std::move(send_to), .range = range, .source = source, .with_own = true};
}

Step store_own(const Range& source, const Range& range, std::vector<int> send_to) {
  Step step = send_own(source, range, std::move(send_to));
  step.store = true;
  return step;
}

Step store_received(int from, const Range& range, std::vector<int> send_to) {
  return {.receive_from = {from}, .send_to = std::move(send_to), .range = range, .source = range, .store = true};
}

std::vector<Piece> cut_blocks(const PlanContext& context, const std::vector<int64_t>& counts) {
  std::vector<int> unfinished;
  int64_t total = 0;
  for (int owner = 0; owner < context.size; ++owner) {
    const int64_t count = counts[static_cast<size_t>(owner)];
    if (count > 0) unfinished.push_back(owner);
    check_num_lanes(num_frames(count, context.chunk), context);  // first alone: the sum of absurd ones could overflow
    total += num_frames(count, context.chunk);
  }
  std::vector<Piece> pieces;
  pieces.reserve(check_num_lanes(total, context));
  for (int64_t index = 0; !unfinished.empty(); ++index) {
    for (const int owner : unfinished) {
      const Range range = frame_of(counts[static_cast<size_t>(owner)], context.chunk, index);
      pieces.push_back({static_cast<uint32_t>(pieces.size()), owner, range});
    }
    // Blocks that end here drop out: looking at them again for each row would cost rows x ranks.
    const auto row = pieces.end() - static_cast<std::ptrdiff_t>(unfinished.size());
    size_t kept = 0;
    for (size_t place = 0; place < unfinished.size(); ++place) {
      const int owner = unfinished[place];
      if (row[static_cast<std::ptrdiff_t>(place)].range.end < counts[static_cast<size_t>(owner)]) {
        unfinished[kept++] = owner;
      }
    }
    unfinished.resize(kept);
  }
  return pieces;
}

std::vector<int64_t> offsets_of(std::span<const int64_t> counts) {
  std::vector<int64_t> offsets;
  offsets.reserve(counts.size());
  int64_t offset = 0;
  for (const int64_t count : counts) {
    offsets.push_back(offset);
    offset += count;
  }
  return offsets;
}

}  // namespace hvd
