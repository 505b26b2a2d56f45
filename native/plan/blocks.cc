// Collectives that move a block for each rank: reducescatter, which reduces it and leaves it on its owner, and
// allgather, which takes it from its owner to all. Each block is cut into pieces of a frame; each piece is a lane of
// its own, with a leader in each group of ranks (plan/groups.h); in the owner's group that is the owner.
//
//                 reducescatter                                   allgather
//   direct        one group of all: everybody sends its operand   one group of all: the owner sends the piece to
//                 to the owner, who reduces in rank order         everybody
//   ring          groups of one: the piece starts behind its      groups of one: the piece goes from rank to rank until
//                 owner and goes around, each rank adding its     the one before its owner has it
//                 own operand
//   hierarchical  the same with hosts as groups; a leader adds   the same with hosts as groups; a leader gives the
//                 the operands of all ranks of its host at once   piece to the ranks of its host
#include <utility>

#include "plan/groups.h"
#include "plan/lanes.h"

namespace hvd {
namespace {

// What the lanes of a plan have in common.
struct Cast {
  Groups groups;
  std::vector<int> group_of;  // by set rank
  std::vector<int> others;    // ranks of the own group: operands in their order, or receivers

  [[nodiscard]] int home_of(const Piece& piece) const { return group_of[static_cast<size_t>(piece.owner)]; }
  [[nodiscard]] int leader(const Piece& piece, int group) const {
    return group == home_of(piece) ? piece.owner : groups.leader(group, piece.lane / groups.size());
  }
};

// `whole` is where the piece lies in the vector of all blocks. The step's `range` is in the numbering of the owner's
// output on all ranks, also where nothing is stored.
Step reduce_piece(const PlanContext& context, const Cast& cast, const Piece& piece, const Range& whole) {
  const Groups& groups = cast.groups;
  const int home = cast.home_of(piece);
  const int mine = cast.leader(piece, groups.mine);
  if (mine != context.rank) return send_own(whole, piece.range, {mine});
  Step step{.receive_from = cast.others,
            .send_to = {},
            .range = piece.range,
            .source = whole,
            .with_own = true,
            .own_position = groups.place};
  const int start = groups.after(home);
  if (groups.mine != start) step.receive_from.push_back(cast.leader(piece, groups.before(groups.mine)));
  if (groups.mine != home) {
    step.send_to.push_back(cast.leader(piece, groups.after(groups.mine)));
  } else {
    step.store = step.finish = true;
  }
  return step;
}

Step spread_piece(const PlanContext& context, const Cast& cast, const Piece& piece, const Range& whole) {
  const Groups& groups = cast.groups;
  const int mine = cast.leader(piece, groups.mine);
  if (mine != context.rank) return store_received(mine, whole, {});
  const int next = groups.after(groups.mine);
  std::vector<int> send_to;
  if (next != cast.home_of(piece)) send_to.push_back(cast.leader(piece, next));
  send_to.insert(send_to.end(), cast.others.begin(), cast.others.end());
  if (piece.owner == context.rank) return store_own(piece.range, whole, std::move(send_to));
  return store_received(cast.leader(piece, groups.before(groups.mine)), whole, std::move(send_to));
}

using StepOfPiece = Step (*)(const PlanContext&, const Cast&, const Piece&, const Range& whole);

Plan plan_blocks(const PlanContext& context, const Cast& cast, const std::vector<int64_t>& counts,
                 StepOfPiece step_of) {
  const std::vector<Piece> pieces = cut_blocks(context, counts);
  const std::vector<int64_t> offsets = offsets_of(counts);
  Plan plan;
  plan.lanes.resize(pieces.size());
  for (size_t index = 0; index < pieces.size(); ++index) {
    const Piece& piece = pieces[index];
    const Range whole = moved(piece.range, offsets[static_cast<size_t>(piece.owner)]);
    Lane& lane = plan.lanes[index];
    lane.number = piece.lane;
    lane.steps.push_back(step_of(context, cast, piece, whole));
  }
  return plan;
}

}  // namespace

Plan plan_reducescatter(const PlanContext& context, Algorithm algorithm, const std::vector<int64_t>& counts) {
  check_context(context);
  check_counts(context, counts);
  const Groups groups = groups_for(context, grouping_of(algorithm));
  const Cast cast{.groups = groups, .group_of = groups.by_rank(), .others = groups.others_rising()};
  return plan_blocks(context, cast, counts, &reduce_piece);
}

Plan plan_allgather(const PlanContext& context, Algorithm algorithm, const std::vector<int64_t>& counts) {
  check_context(context);
  check_counts(context, counts);
  const Groups groups = groups_for(context, grouping_of(algorithm));
  const Cast cast{.groups = groups, .group_of = groups.by_rank(), .others = groups.others_after()};
  return plan_blocks(context, cast, counts, &spread_piece);
}

}  // namespace hvd
