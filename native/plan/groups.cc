#include "plan/groups.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <utility>

namespace hvd {
namespace {

int host_of(const PlanContext& context, int rank) {
  return context.hosts.empty() ? 0 : context.hosts[static_cast<size_t>(rank)];
}

}  // namespace

std::span<const int> Groups::members(int group) const {
  const auto index = static_cast<size_t>(group);
  return std::span(ranks).subspan(static_cast<size_t>(begins[index]),
                                  static_cast<size_t>(begins[index + 1] - begins[index]));
}

int Groups::leader(int group, int64_t turn) const {
  const std::span<const int> all = members(group);
  return all[static_cast<size_t>(turn) % all.size()];
}

std::vector<int> Groups::by_rank() const {
  std::vector<int> groups(ranks.size());
  for (int group = 0; group < size(); ++group) {
    for (const int rank : members(group)) groups[static_cast<size_t>(rank)] = group;
  }
  return groups;
}

std::vector<int> Groups::others_rising() const {
  std::vector<int> others(members(mine).begin(), members(mine).end());
  others.erase(others.begin() + place);
  return others;
}

std::vector<int> Groups::others_after() const {
  std::vector<int> others = others_rising();
  std::rotate(others.begin(), others.begin() + place, others.end());
  return others;
}

Groups groups_for(const PlanContext& context, Grouping grouping) {
  Groups groups;
  groups.ranks.resize(static_cast<size_t>(context.size));
  std::iota(groups.ranks.begin(), groups.ranks.end(), 0);
  if (grouping != Grouping::kAll && !context.hosts.empty()) {
    std::sort(groups.ranks.begin(), groups.ranks.end(),
              [&](int a, int b) { return std::pair(host_of(context, a), a) < std::pair(host_of(context, b), b); });
  }
  for (int at = 0; at < context.size; ++at) {
    const int rank = groups.ranks[static_cast<size_t>(at)];
    const bool same_host =
        at > 0 && host_of(context, rank) == host_of(context, groups.ranks[static_cast<size_t>(at) - 1]);
    const bool begins = at == 0 || grouping == Grouping::kRanks || (grouping == Grouping::kHosts && !same_host);
    if (begins) groups.begins.push_back(at);
    if (rank != context.rank) continue;
    groups.mine = static_cast<int>(groups.begins.size()) - 1;
    groups.place = at - groups.begins.back();
  }
  groups.begins.push_back(context.size);
  return groups;
}

Grouping grouping_of(Algorithm algorithm) {
  if (algorithm == Algorithm::kRing) return Grouping::kRanks;
  return algorithm == Algorithm::kDirect || algorithm == Algorithm::kExchange ? Grouping::kAll : Grouping::kHosts;
}

Flow ring_flow(const Groups& groups, int start) {
  const int mine = groups.mine;
  const int root = groups.before(start);
  Flow flow;
  if (mine != start) flow.up_from.push_back(groups.before(mine));
  if (mine != root) {
    flow.up_to = groups.after(mine);
    flow.down_from = groups.before(mine);
  }
  if (groups.after(mine) != root) flow.down_to.push_back(groups.after(mine));
  return flow;
}

Flow tree_flow(const Groups& groups, int root) {
  const int size = groups.size();
  const auto group_at = [&](int place) { return (root + place) % size; };
  const int mine = (groups.mine - root + size) % size;
  const TreePlace place = tree_place(mine, size);
  Flow flow;
  for (const int child : place.children) flow.down_to.push_back(group_at(child));
  // Small subtrees are ready first.
  flow.up_from.assign(flow.down_to.rbegin(), flow.down_to.rend());
  if (mine != 0) flow.up_to = flow.down_from = group_at(place.parent);
  return flow;
}

Flow star_flow(const Groups& groups, int root) {
  Flow flow;
  if (groups.mine != root) {
    flow.up_to = flow.down_from = root;
    return flow;
  }
  for (int group = 0; group < groups.size(); ++group) {
    if (group != root) flow.up_from.push_back(group);
  }
  flow.down_to = flow.up_from;
  // Not everybody is sent to in the same order.
  std::rotate(flow.down_to.begin(), flow.down_to.begin() + root, flow.down_to.end());
  return flow;
}

TreePlace tree_place(int place, int size) {
  const auto at = static_cast<unsigned>(place);
  const auto end = static_cast<unsigned>(size);
  TreePlace found{.parent = static_cast<int>(at & (at - 1))};
  if (place == 0) found.parent = 0;
  const unsigned limit = place == 0 ? std::bit_ceil(end) : at & (0 - at);
  for (unsigned bit = limit >> 1; bit > 0; bit >>= 1) {
    if (at + bit < end) found.children.push_back(static_cast<int>(at + bit));
  }
  return found;
}

}  // namespace hvd
