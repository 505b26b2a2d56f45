// Allreduce. The vector is cut into stripes, a stripe into one share for each rank, each share at most a frame. Each
// share is a lane of its own. In a lane each group of ranks has a leader (plan/groups.h); leaders pass the value on.
//
//   direct        one group of all: everybody sends its operand to the share's owner, who reduces in the order of the
//                 ranks and sends the result to everybody
//   ring          groups of one: share s starts at rank s and goes once around, each rank adding its own operand; the
//                 last one (rank s - 1) has the result, which goes around once more
//   hierarchical  the same with hosts as groups; a leader adds the operands of all ranks of its host at once
//   trees         hosts as groups; the value goes up a tree of hosts, and the result down
//   stars         hosts as groups; each gives its value to one, which gives the result to each
//
// Two have no shares; each frame of the whole vector is a lane:
//
//   exchange      everybody sends everything to everybody, and reduces in the order of the ranks
//   doubling      hosts as groups; in each round a leader and its partner send each other what they have, and both add
//
// A lane for the whole stripe would be shorter to write down, but there a frame waits for sends that have nothing to do
// with it: when channels are full, ranks that work on different stripes would wait for each other in a circle. In a
// lane that holds one share a frame that arrives can always be taken.
#include <algorithm>
#include <bit>
#include <utility>

#include "base/error.h"
#include "plan/groups.h"
#include "plan/lanes.h"

namespace hvd {
namespace {

// What the lanes of a plan have in common.
struct Cast {
  const Groups& groups;
  std::vector<int> after;   // ranks of the own group in the order of sends
  std::vector<int> rising;  // and in the order of operands
};

// Adds the operands of this rank's group, in the order of the ranks, and then what comes from `from`.
Step reduce_group(const Cast& cast, const Range& range, const std::vector<int>& from) {
  Step step{.receive_from = cast.rising,
            .send_to = {},
            .range = range,
            .source = range,
            .with_own = true,
            .own_position = cast.groups.place};
  step.receive_from.insert(step.receive_from.end(), from.begin(), from.end());
  return step;
}

// `first`: the start of a ring, the root of a tree or a star.
Flow flow_of(Algorithm algorithm, const Groups& groups, int first) {
  if (algorithm == Algorithm::kTrees) return tree_flow(groups, first);
  return algorithm == Algorithm::kStars ? star_flow(groups, first) : ring_flow(groups, first);
}

// The value is the result: this rank keeps it, and gives it to its group.
void end_with(const Cast& cast, Step& step) {
  step.store = true;
  step.send_to.insert(step.send_to.end(), cast.after.begin(), cast.after.end());
}

std::vector<int> leaders_of(const Groups& groups, const std::vector<int>& of, int64_t turn) {
  std::vector<int> leaders;
  leaders.reserve(of.size());
  for (const int group : of) leaders.push_back(groups.leader(group, turn));
  return leaders;
}

std::vector<Step> steps_of_member(int leader, const Range& range) {
  std::vector<Step> steps;
  steps.reserve(2);
  steps.push_back(send_own(range, range, {leader}));
  steps.push_back(store_received(leader, range, {}));
  return steps;
}

std::vector<Step> steps_of_leader(const Cast& cast, const Flow& flow, int64_t turn, const Range& share) {
  const Groups& groups = cast.groups;
  const std::vector<int> down_to = leaders_of(groups, flow.down_to, turn);
  std::vector<Step> steps;
  steps.reserve(2);
  steps.push_back(reduce_group(cast, share, leaders_of(groups, flow.up_from, turn)));
  if (flow.up_to < 0) {
    steps.back().send_to = down_to;
    steps.back().finish = true;
  } else {
    steps.back().send_to.push_back(groups.leader(flow.up_to, turn));
    steps.push_back(store_received(groups.leader(flow.down_from, turn), share, down_to));
  }
  end_with(cast, steps.back());
  return steps;
}

// One lane for each frame of the whole vector. All ranks combine the same operands in the same order, so their results
// are equal to the bit.
Plan plan_exchange(const PlanContext& context, const Cast& cast, int64_t count) {
  Plan plan;
  plan.lanes.resize(check_num_lanes(num_frames(count, context.chunk), context));
  for (size_t number = 0; number < plan.lanes.size(); ++number) {
    const Range range = frame_of(count, context.chunk, static_cast<int64_t>(number));
    Lane& lane = plan.lanes[number];
    lane.number = static_cast<uint32_t>(number);
    lane.steps.reserve(2);
    lane.steps.push_back(send_own(range, range, cast.after));
    lane.steps.push_back(reduce_group(cast, range, {}));
    lane.steps.back().store = lane.steps.back().finish = true;
  }
  return plan;
}

// Groups beyond the largest power of two give their value to a group below it, and get the result from there.
std::vector<Step> doubling_steps(const Cast& cast, int64_t turn, const Range& range) {
  const Groups& groups = cast.groups;
  const int mine = groups.mine;
  const int power = static_cast<int>(std::bit_floor(static_cast<unsigned>(groups.size())));
  const auto leader = [&](int group) { return groups.leader(group, turn); };
  std::vector<Step> steps;
  if (mine >= power) {
    steps.push_back(reduce_group(cast, range, {}));
    steps.back().send_to.push_back(leader(mine - power));
    steps.push_back(store_received(leader(mine - power), range, {}));
    end_with(cast, steps.back());
    return steps;
  }
  std::vector<int> extra;
  if (mine + power < groups.size()) extra.push_back(leader(mine + power));
  steps.push_back(reduce_group(cast, range, extra));
  steps.back().store = true;
  for (int distance = 1; distance < power; distance *= 2) {
    const int partner = mine ^ distance;
    steps.back().send_to.push_back(leader(partner));
    // Both partners put the lower group's value first, so that their results are equal to the bit.
    steps.push_back({.receive_from = {leader(partner)},
                     .send_to = {},
                     .range = range,
                     .source = range,
                     .with_own = true,
                     .own_position = mine < partner ? 0 : 1,
                     .accumulated = true,
                     .store = true});
  }
  steps.back().finish = true;
  steps.back().send_to = std::move(extra);
  end_with(cast, steps.back());
  return steps;
}

Plan plan_doubling(const PlanContext& context, const Cast& cast, int64_t count) {
  Plan plan;
  plan.lanes.resize(check_num_lanes(num_frames(count, context.chunk), context));
  for (size_t number = 0; number < plan.lanes.size(); ++number) {
    const Range range = frame_of(count, context.chunk, static_cast<int64_t>(number));
    const auto turn = static_cast<int64_t>(number);
    const int leader = cast.groups.leader(cast.groups.mine, turn);
    Lane& lane = plan.lanes[number];
    lane.number = static_cast<uint32_t>(number);
    lane.steps = leader == context.rank ? doubling_steps(cast, turn, range) : steps_of_member(leader, range);
  }
  return plan;
}

}  // namespace

Plan plan_allreduce(const PlanContext& context, Algorithm algorithm, int64_t count) {
  check_context(context);
  if (count < 0) throw Error(ErrorKind::kInternal, "an allreduce of a negative count was planned; please report this");
  if (count == 0) return {};
  const Groups groups = groups_for(context, grouping_of(algorithm));
  const Cast cast{.groups = groups, .after = groups.others_after(), .rising = groups.others_rising()};
  if (algorithm == Algorithm::kExchange && context.size > 1) return plan_exchange(context, cast, count);
  if (algorithm == Algorithm::kDoubling && groups.size() > 1) return plan_doubling(context, cast, count);
  // A tensor shorter than a full stripe is still spread over all ranks.
  const int64_t stripe = std::min(context.chunk, num_frames(count, context.size)) * context.size;
  const int64_t in_last = (count - 1) % stripe + 1;  // elements in the last stripe: fewer than ranks, maybe
  const int64_t num_lanes = (count - in_last) / stripe * context.size + std::min<int64_t>(in_last, context.size);
  Plan plan;
  plan.lanes.resize(check_num_lanes(num_lanes, context));
  for (int64_t number = 0; number < num_lanes; ++number) {
    const Range within = frame_of(count, stripe, number / context.size);
    const auto place = static_cast<int>(number % context.size);
    const Range share = moved(share_of(within.size(), place, context.size), within.begin);
    const auto first = static_cast<int>(number % groups.size());
    const int64_t turn = number / groups.size();
    const int leader = groups.leader(groups.mine, turn);
    Lane& lane = plan.lanes[static_cast<size_t>(number)];
    lane.number = static_cast<uint32_t>(number);
    if (leader != context.rank) {
      lane.steps = steps_of_member(leader, share);
      continue;
    }
    lane.steps = steps_of_leader(cast, flow_of(algorithm, groups, first), turn, share);
  }
  return plan;
}

}  // namespace hvd
