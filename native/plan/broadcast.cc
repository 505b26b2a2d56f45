// Broadcast. Each frame is a lane. Each host has a leader in it (plan/groups.h); on the root's host that is the root.
//
//   between hosts  a binomial tree, or a chain: each host gets each frame once
//   inside a host  up to four ranks the leader sends to everybody; beyond that a binomial tree keeps its part at
//                  log2(ranks) sends per frame
//
// Hosts are counted from the root's on, ranks of a host from its leader on, both around a ring.
#include <algorithm>
#include <string>
#include <utility>

#include "base/error.h"
#include "plan/groups.h"
#include "plan/lanes.h"

namespace hvd {
namespace {

constexpr int kLargestStar = 4;

TreePlace star_place(int place, int size) {
  TreePlace found;
  for (int child = 1; place == 0 && child < size; ++child) found.children.push_back(child);
  return found;
}

TreePlace chain_place(int place, int size) {
  TreePlace found{.parent = std::max(place - 1, 0)};
  if (place + 1 < size) found.children.push_back(place + 1);
  return found;
}

// What the lanes of a plan have in common.
struct Cast {
  const Groups& groups;
  int root = 0;      // set rank
  int home = 0;      // the root's group
  TreePlace places;  // of this rank's group among the groups; counted from the root's on

  [[nodiscard]] int leader(int group, int64_t turn) const { return group == home ? root : groups.leader(group, turn); }
  [[nodiscard]] int leader_at(int place, int64_t turn) const { return leader((home + place) % groups.size(), turn); }
};

// The ranks that this one sends to on its host, and the one that it receives from if it is not the leader.
struct HostPlace {
  int parent = 0;
  std::vector<int> children;
};

HostPlace place_on_host(const Groups& groups, int leader) {
  const std::span<const int> members = groups.members(groups.mine);
  const auto size = static_cast<int>(members.size());
  const auto first = static_cast<int>(std::find(members.begin(), members.end(), leader) - members.begin());
  const int place = (groups.place - first + size) % size;
  const TreePlace found = size <= kLargestStar ? star_place(place, size) : tree_place(place, size);
  const auto member_at = [&](int at) { return members[static_cast<size_t>((first + at) % size)]; };
  HostPlace result{.parent = member_at(found.parent), .children = {}};
  for (const int child : found.children) result.children.push_back(member_at(child));
  return result;
}

Step step_of(const PlanContext& context, const Cast& cast, int64_t turn, const Range& range) {
  const int leader = cast.leader(cast.groups.mine, turn);
  HostPlace host = place_on_host(cast.groups, leader);
  if (leader != context.rank) return store_received(host.parent, range, std::move(host.children));
  std::vector<int> send_to;
  for (const int place : cast.places.children) send_to.push_back(cast.leader_at(place, turn));
  send_to.insert(send_to.end(), host.children.begin(), host.children.end());
  if (context.rank == cast.root) return store_own(range, range, std::move(send_to));
  return store_received(cast.leader_at(cast.places.parent, turn), range, std::move(send_to));
}

}  // namespace

Plan plan_broadcast(const PlanContext& context, int root, int64_t count, Spread spread) {
  check_context(context);
  if (root < 0 || root >= context.size || count < 0) {
    throw Error(ErrorKind::kInternal, "a broadcast of " + std::to_string(count) + " elements from root " +
                                          std::to_string(root) + " of " + std::to_string(context.size) +
                                          " ranks was planned; please report this");
  }
  const Groups groups = groups_for(context, Grouping::kHosts);
  const int home = groups.by_rank()[static_cast<size_t>(root)];
  const int place = (groups.mine - home + groups.size()) % groups.size();
  const Cast cast{
      .groups = groups,
      .root = root,
      .home = home,
      .places = spread == Spread::kChain ? chain_place(place, groups.size()) : tree_place(place, groups.size())};
  Plan plan;
  plan.lanes.resize(check_num_lanes(num_frames(count, context.chunk), context));
  for (size_t index = 0; index < plan.lanes.size(); ++index) {
    const auto turn = static_cast<int64_t>(index);
    Lane& lane = plan.lanes[index];
    lane.number = static_cast<uint32_t>(index);
    lane.steps.push_back(step_of(context, cast, turn, frame_of(count, context.chunk, turn)));
  }
  return plan;
}

}  // namespace hvd
