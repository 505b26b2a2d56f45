// Allreduce. The vector is cut into stripes, a stripe into one share for each rank, each share at most a frame. Each
// share is a lane of its own.
//
//   direct  everybody sends its operand to the share's owner, who reduces in the order of the ranks and sends the
//           result to everybody
//   exchange  no shares: everybody sends everything to everybody, and reduces in the order of the ranks
//   ring    share s starts at rank s and goes once around, each rank adding its own operand; the last one
//           (rank s - 1) has the result, which goes around once more
//
// A lane for the whole stripe would be shorter to write down, but there a frame waits for sends that have nothing to do
// with it: when channels are full, ranks that work on different stripes would wait for each other in a circle. In a
// lane that holds one share a frame that arrives can always be taken.
#include <algorithm>
#include <utility>

#include "base/error.h"
#include "plan/lanes.h"

namespace hvd {
namespace {

struct Peers {
  std::vector<int> after;   // order of sends
  std::vector<int> rising;  // order of operands
  int next;
  int previous;
};

std::vector<Step> direct_steps(const PlanContext& context, const Peers& peers, int owner, const Range& share) {
  std::vector<Step> steps;
  if (owner == context.rank) {
    steps.push_back({.receive_from = peers.rising,
                     .send_to = peers.after,
                     .range = share,
                     .source = share,
                     .with_own = true,
                     .own_position = context.rank,
                     .store = true,
                     .finish = true});
    return steps;
  }
  steps.reserve(2);
  steps.push_back(send_own(share, share, {owner}));
  steps.push_back(store_received(owner, share, {}));
  return steps;
}

// One lane for each frame of the whole vector. All ranks combine the same operands in the same order, so their results
// are equal to the bit.
Plan plan_exchange(const PlanContext& context, const Peers& peers, int64_t count) {
  Plan plan;
  plan.lanes.resize(check_num_lanes(num_frames(count, context.chunk), context));
  for (size_t number = 0; number < plan.lanes.size(); ++number) {
    const Range range = frame_of(count, context.chunk, static_cast<int64_t>(number));
    Lane& lane = plan.lanes[number];
    lane.number = static_cast<uint32_t>(number);
    lane.steps.reserve(2);
    lane.steps.push_back(send_own(range, range, peers.after));
    lane.steps.push_back({.receive_from = peers.rising,
                          .send_to = {},
                          .range = range,
                          .source = range,
                          .with_own = true,
                          .own_position = context.rank,
                          .store = true,
                          .finish = true});
  }
  return plan;
}

std::vector<Step> ring_steps(const PlanContext& context, const Peers& peers, int first, const Range& share) {
  const int last = rank_after(context, first, -1);  // of the first turn
  std::vector<Step> steps;
  steps.reserve(2);
  if (context.rank == first) {
    steps.push_back(send_own(share, share, {peers.next}));
  } else {
    steps.push_back(reduce_received(peers.previous, share, share, {peers.next}));
  }
  if (context.rank == last) {
    steps.back().store = steps.back().finish = true;
    return steps;
  }
  steps.push_back(store_received(peers.previous, share, {}));
  if (peers.next != last) steps.back().send_to.push_back(peers.next);
  return steps;
}

}  // namespace

Plan plan_allreduce(const PlanContext& context, Algorithm algorithm, int64_t count) {
  check_context(context);
  if (count < 0) throw Error(ErrorKind::kInternal, "an allreduce of a negative count was planned; please report this");
  if (count == 0) return {};
  // A tensor shorter than a full stripe is still spread over all ranks.
  const int64_t stripe = std::min(context.chunk, num_frames(count, context.size)) * context.size;
  const int64_t in_last = (count - 1) % stripe + 1;  // elements in the last stripe: fewer than ranks, maybe
  const int64_t num_lanes = (count - in_last) / stripe * context.size + std::min<int64_t>(in_last, context.size);
  const Peers peers{.after = peers_after(context),
                    .rising = peers_rising(context),
                    .next = rank_after(context, context.rank, 1),
                    .previous = rank_after(context, context.rank, -1)};
  if (algorithm == Algorithm::kExchange && context.size > 1) return plan_exchange(context, peers, count);
  // A single rank has nobody to ring with, but its value is scaled like any other.
  const bool direct = algorithm != Algorithm::kRing || context.size == 1;
  Plan plan;
  plan.lanes.resize(check_num_lanes(num_lanes, context));
  for (size_t number = 0; number < plan.lanes.size(); ++number) {
    const int owner = static_cast<int>(number % static_cast<size_t>(context.size));
    const Range within = frame_of(count, stripe, static_cast<int64_t>(number) / context.size);
    const Range share = moved(share_of(within.size(), owner, context.size), within.begin);
    Lane& lane = plan.lanes[number];
    lane.number = static_cast<uint32_t>(number);
    lane.steps = direct ? direct_steps(context, peers, owner, share) : ring_steps(context, peers, owner, share);
  }
  return plan;
}

}  // namespace hvd
