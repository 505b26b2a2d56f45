// Inside plan/ only: what all plans are made from, which is ranks in order, frames and kinds of step.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "plan/plan.h"

namespace hvd {

// Throws Error (kInternal) unless 0 <= rank < size, chunk > 0, and hosts, if given, are of all ranks.
void check_context(const PlanContext& context);

// Throws Error (kInternal) unless there is one count for each rank and none is negative.
void check_counts(const PlanContext& context, const std::vector<int64_t>& counts);

// Throws Error (kUsage) if lane numbers up to `num_lanes` - 1 do not fit.
size_t check_num_lanes(int64_t num_lanes, const PlanContext& context);

// The rank `distance` places further around the ring; distance in [-size, size].
[[nodiscard]] inline int rank_after(const PlanContext& context, int rank, int distance) {
  const int position = rank + distance;
  if (position < 0) return position + context.size;
  return position < context.size ? position : position - context.size;
}

[[nodiscard]] inline int64_t num_frames(int64_t count, int64_t chunk) {
  return count / chunk + (count % chunk == 0 ? 0 : 1);
}

[[nodiscard]] inline Range moved(const Range& range, int64_t by) { return {range.begin + by, range.end + by}; }

// Frame `index` of `count` elements.
[[nodiscard]] inline Range frame_of(int64_t count, int64_t chunk, int64_t index) {
  const int64_t begin = index * chunk;
  return {begin, count - begin < chunk ? count : begin + chunk};
}

// This rank's own elements go out unchanged.
[[nodiscard]] Step send_own(const Range& source, const Range& range, std::vector<int> send_to);
// This rank's own elements are (a part of) its result.
[[nodiscard]] Step store_own(const Range& source, const Range& range, std::vector<int> send_to);
// What comes from `from` is (a part of) this rank's result.
[[nodiscard]] Step store_received(int from, const Range& range, std::vector<int> send_to);

// A frame's worth of one rank's block.
struct Piece {
  uint32_t lane = 0;  // lane number, the same on all ranks
  int owner = 0;      // set rank of the block's owner
  Range range;        // within the block
};

// Cuts blocks of `counts[owner]` elements into pieces: first the first piece of every block, then the second of
// every block that has one, and so on, so that all owners have work at the same time.
[[nodiscard]] std::vector<Piece> cut_blocks(const PlanContext& context, const std::vector<int64_t>& counts);

// Where each block starts when blocks of these sizes lie one after the other.
[[nodiscard]] std::vector<int64_t> offsets_of(std::span<const int64_t> counts);

}  // namespace hvd
