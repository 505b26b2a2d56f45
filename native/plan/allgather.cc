// Allgather. Each rank's block is cut into pieces of a frame; each piece is a lane of its own, with a carrier in each
// group of ranks (plan/groups.h); in the owner's group that is the owner.
//
//   direct        one group of all: the owner sends the piece to everybody
//   ring          groups of one: the piece goes from rank to rank until the one before its owner has it
//   hierarchical  the same with hosts as groups; a carrier gives the piece to the ranks of its host
#include <utility>

#include "plan/groups.h"
#include "plan/lanes.h"

namespace hvd {
namespace {

// What the lanes of a plan have in common.
struct Cast {
  const Groups& groups;
  std::vector<int> group_of;  // by set rank
  std::vector<int> after;     // ranks of the own group in the order of sends
};

Step step_of(const PlanContext& context, const Cast& cast, const Piece& piece, const Range& range) {
  const Groups& groups = cast.groups;
  const int home = cast.group_of[static_cast<size_t>(piece.owner)];
  const auto carrier = [&](int group) {
    return group == home ? piece.owner : groups.carrier(group, piece.lane / groups.size());
  };
  const int mine = carrier(groups.mine);
  if (mine != context.rank) return store_received(mine, range, {});
  const int next = groups.after(groups.mine);
  std::vector<int> send_to;
  if (next != home) send_to.push_back(carrier(next));
  send_to.insert(send_to.end(), cast.after.begin(), cast.after.end());
  if (piece.owner == context.rank) return store_own(piece.range, range, std::move(send_to));
  return store_received(carrier(groups.before(groups.mine)), range, std::move(send_to));
}

}  // namespace

Plan plan_allgather(const PlanContext& context, Algorithm algorithm, const std::vector<int64_t>& counts) {
  check_context(context);
  check_counts(context, counts);
  const std::vector<Piece> pieces = cut_blocks(context, counts);
  const std::vector<int64_t> offsets = offsets_of(counts);
  const Groups groups = groups_for(context, grouping_of(algorithm));
  const Cast cast{.groups = groups, .group_of = groups.by_rank(), .after = groups.others_after()};
  Plan plan;
  plan.lanes.resize(pieces.size());
  for (size_t index = 0; index < pieces.size(); ++index) {
    const Piece& piece = pieces[index];
    const Range range = moved(piece.range, offsets[static_cast<size_t>(piece.owner)]);
    Lane& lane = plan.lanes[index];
    lane.number = piece.lane;
    lane.steps.push_back(step_of(context, cast, piece, range));
  }
  return plan;
}

}  // namespace hvd
