// Reducescatter. Each rank's share is cut into pieces of a frame; each piece is a lane of its own.
//
//   direct  everybody sends its operand to the owner, who reduces in the order of the ranks
//   ring    the piece starts behind its owner and goes around, each rank adding its own operand
//
// A step's `range` is in the numbering of the owner's output on all ranks, also where nothing is stored.
#include "plan/lanes.h"

namespace hvd {
namespace {

Step direct_step(const PlanContext& context, const std::vector<int>& operands, const Piece& piece,
                 const Range& source) {
  if (piece.owner != context.rank) return send_own(source, piece.range, {piece.owner});
  return {.receive_from = operands,
          .send_to = {},
          .range = piece.range,
          .source = source,
          .with_own = true,
          .own_position = context.rank,
          .store = true,
          .finish = true};
}

Step ring_step(const PlanContext& context, const Piece& piece, const Range& source) {
  const int next = rank_after(context, context.rank, 1);
  const int previous = rank_after(context, context.rank, -1);
  if (previous == piece.owner) return send_own(source, piece.range, {next});
  if (piece.owner != context.rank) return reduce_received(previous, source, piece.range, {next});
  Step step = reduce_received(previous, source, piece.range, {});
  step.store = step.finish = true;
  return step;
}

}  // namespace

Plan plan_reducescatter(const PlanContext& context, Algorithm algorithm, const std::vector<int64_t>& counts) {
  check_context(context);
  check_counts(context, counts);
  const std::vector<Piece> pieces = cut_blocks(context, counts);
  const std::vector<int64_t> offsets = offsets_of(counts);
  const std::vector<int> operands = peers_rising(context);
  const bool direct = algorithm == Algorithm::kDirect || context.size == 1;
  Plan plan;
  plan.lanes.resize(pieces.size());
  for (size_t index = 0; index < pieces.size(); ++index) {
    const Piece& piece = pieces[index];
    const Range source = moved(piece.range, offsets[static_cast<size_t>(piece.owner)]);
    Lane& lane = plan.lanes[index];
    lane.number = piece.lane;
    lane.steps.push_back(direct ? direct_step(context, operands, piece, source) : ring_step(context, piece, source));
  }
  return plan;
}

}  // namespace hvd
