// Broadcast. Each frame is a lane. Up to four ranks the root sends to everybody; beyond that a binomial tree
// keeps the root's part at log2(size) sends per frame.
//
// In the tree ranks are counted from the root on: position = rank - root, around the ring. A position's parent
// lacks its lowest set bit; its children add one bit below that.
#include <bit>
#include <string>

#include "base/error.h"
#include "plan/lanes.h"

namespace hvd {
namespace {

constexpr int kLargestStar = 4;

struct Place {
  int parent = 0;             // set rank
  std::vector<int> children;  // set ranks, those with the most descendants first
};

Place place_in_tree(const PlanContext& context, int root) {
  const unsigned size = static_cast<unsigned>(context.size);
  const unsigned position = static_cast<unsigned>(rank_after(context, context.rank, -root));
  Place place{.parent = rank_after(context, root, static_cast<int>(position & (position - 1))), .children = {}};
  const unsigned limit = position == 0 ? std::bit_ceil(size) : position & (0 - position);
  for (unsigned bit = limit >> 1; bit > 0; bit >>= 1) {
    if (position + bit < size) place.children.push_back(rank_after(context, root, static_cast<int>(position + bit)));
  }
  return place;
}

Place place_in_star(const PlanContext& context, int root) {
  if (context.rank == root) return {.parent = root, .children = peers_after(context)};
  return {.parent = root, .children = {}};
}

}  // namespace

Plan plan_broadcast(const PlanContext& context, int root, int64_t count) {
  check_context(context);
  if (root < 0 || root >= context.size || count < 0) {
    throw Error(ErrorKind::kInternal, "a broadcast of " + std::to_string(count) + " elements from root " +
                                          std::to_string(root) + " of " + std::to_string(context.size) +
                                          " ranks was planned; please report this");
  }
  const Place place = context.size <= kLargestStar ? place_in_star(context, root) : place_in_tree(context, root);
  Plan plan;
  plan.lanes.resize(check_num_lanes(num_frames(count, context.chunk), context));
  for (size_t index = 0; index < plan.lanes.size(); ++index) {
    const Range range = frame_of(count, context.chunk, static_cast<int64_t>(index));
    Lane& lane = plan.lanes[index];
    lane.number = static_cast<uint32_t>(index);
    lane.steps.push_back(context.rank == root ? store_own(range, range, place.children)
                                              : store_received(place.parent, range, place.children));
  }
  return plan;
}

}  // namespace hvd
