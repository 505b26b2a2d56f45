// Reducescatter. Each rank's share is cut into pieces of a frame; each piece is a lane of its own, with a carrier in
// each group of ranks (plan/groups.h); in the owner's group that is the owner.
//
//   direct        one group of all: everybody sends its operand to the owner, who reduces in the order of the ranks
//   ring          groups of one: the piece starts behind its owner and goes around, each rank adding its own operand
//   hierarchical  the same with hosts as groups; a carrier adds the operands of all ranks of its host at once
//
// A step's `range` is in the numbering of the owner's output on all ranks, also where nothing is stored.
#include "plan/groups.h"
#include "plan/lanes.h"

namespace hvd {
namespace {

// What the lanes of a plan have in common.
struct Cast {
  const Groups& groups;
  std::vector<int> group_of;  // by set rank
  std::vector<int> rising;    // ranks of the own group in the order of operands
};

Step step_of(const PlanContext& context, const Cast& cast, const Piece& piece, const Range& source) {
  const Groups& groups = cast.groups;
  const int home = cast.group_of[static_cast<size_t>(piece.owner)];
  const auto carrier = [&](int group) {
    return group == home ? piece.owner : groups.carrier(group, piece.lane / groups.size());
  };
  const int mine = carrier(groups.mine);
  if (mine != context.rank) return send_own(source, piece.range, {mine});
  Step step{.receive_from = cast.rising,
            .send_to = {},
            .range = piece.range,
            .source = source,
            .with_own = true,
            .own_position = groups.place};
  const int start = groups.after(home);
  if (groups.mine != start) step.receive_from.push_back(carrier(groups.before(groups.mine)));
  if (groups.mine != home) {
    step.send_to.push_back(carrier(groups.after(groups.mine)));
  } else {
    step.store = step.finish = true;
  }
  return step;
}

}  // namespace

Plan plan_reducescatter(const PlanContext& context, Algorithm algorithm, const std::vector<int64_t>& counts) {
  check_context(context);
  check_counts(context, counts);
  const std::vector<Piece> pieces = cut_blocks(context, counts);
  const std::vector<int64_t> offsets = offsets_of(counts);
  const Groups groups = groups_for(context, grouping_of(algorithm));
  const Cast cast{.groups = groups, .group_of = groups.by_rank(), .rising = groups.others_rising()};
  Plan plan;
  plan.lanes.resize(pieces.size());
  for (size_t index = 0; index < pieces.size(); ++index) {
    const Piece& piece = pieces[index];
    const Range source = moved(piece.range, offsets[static_cast<size_t>(piece.owner)]);
    Lane& lane = plan.lanes[index];
    lane.number = piece.lane;
    lane.steps.push_back(step_of(context, cast, piece, source));
  }
  return plan;
}

}  // namespace hvd
