// Allgather. Each rank's block is cut into pieces of a frame; each piece is a lane of its own.
//
//   direct  the owner sends the piece to everybody
//   ring    the piece goes from rank to rank until the one before its owner has it
#include <utility>

#include "plan/lanes.h"

namespace hvd {
namespace {

Step direct_step(const PlanContext& context, const std::vector<int>& peers, const Piece& piece, const Range& range) {
  if (piece.owner == context.rank) return store_own(piece.range, range, peers);
  return store_received(piece.owner, range, {});
}

Step ring_step(const PlanContext& context, const Piece& piece, const Range& range) {
  const int next = rank_after(context, context.rank, 1);
  std::vector<int> send_to;
  if (next != piece.owner) send_to.push_back(next);
  if (piece.owner == context.rank) return store_own(piece.range, range, std::move(send_to));
  return store_received(rank_after(context, context.rank, -1), range, std::move(send_to));
}

}  // namespace

Plan plan_allgather(const PlanContext& context, Algorithm algorithm, const std::vector<int64_t>& counts) {
  check_context(context);
  check_counts(context, counts);
  const std::vector<Piece> pieces = cut_blocks(context, counts);
  const std::vector<int64_t> offsets = offsets_of(counts);
  const std::vector<int> peers = peers_after(context);
  const bool direct = algorithm == Algorithm::kDirect;
  Plan plan;
  plan.lanes.resize(pieces.size());
  for (size_t index = 0; index < pieces.size(); ++index) {
    const Piece& piece = pieces[index];
    const Range range = moved(piece.range, offsets[static_cast<size_t>(piece.owner)]);
    Lane& lane = plan.lanes[index];
    lane.number = piece.lane;
    lane.steps.push_back(direct ? direct_step(context, peers, piece, range) : ring_step(context, piece, range));
  }
  return plan;
}

}  // namespace hvd
