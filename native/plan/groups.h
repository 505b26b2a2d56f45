// Inside plan/ only: the ranks of a set in groups, and the ways that a value takes from group to group.
//
// One description serves all algorithms: the ranks of a group give their operands to the group's leader, leaders pass
// values on from group to group, and give the result to their groups. With all ranks in one group that is kDirect, with
// each rank in a group of its own kRing, and with hosts as groups what is between.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "plan/plan.h"

namespace hvd {

enum class Grouping : uint8_t { kAll, kHosts, kRanks };

struct Groups {
  std::vector<int> ranks;   // set ranks, group after group, rising in each
  std::vector<int> begins;  // where in `ranks` each group begins; and the end of the last one
  int mine = 0;             // this rank's group
  int place = 0;            // this rank's place in its group

  [[nodiscard]] int size() const { return static_cast<int>(begins.size()) - 1; }
  [[nodiscard]] std::span<const int> members(int group) const;
  // Who acts for a group; each member in its turn.
  [[nodiscard]] int leader(int group, int64_t turn) const;
  [[nodiscard]] int after(int group) const { return group + 1 < size() ? group + 1 : 0; }
  [[nodiscard]] int before(int group) const { return (group > 0 ? group : size()) - 1; }
  // The group of each set rank.
  [[nodiscard]] std::vector<int> by_rank() const;
  // The other ranks of this rank's group, rising: the order of operands.
  [[nodiscard]] std::vector<int> others_rising() const;
  // The same, from this rank on: the order of sends, so that not everybody starts with the first.
  [[nodiscard]] std::vector<int> others_after() const;
};

[[nodiscard]] Groups groups_for(const PlanContext& context, Grouping grouping);
[[nodiscard]] Grouping grouping_of(Algorithm algorithm);

// A reduced value's way through one group: from groups nearer to where it starts, and to those nearer to its root;
// and back from the root to all.
struct Flow {
  std::vector<int> up_from;    // groups whose values this one adds its own to
  int up_to = -1;              // negative: this group is the root
  int down_from = -1;          // negative: this group is the root
  std::vector<int> down_to{};  // groups
};

// Once around, adding, from `start` to the group before it; and on around with the result.
[[nodiscard]] Flow ring_flow(const Groups& groups, int start);
// Up and down a binomial tree. Groups are counted from the root on; a parent lacks the lowest bit set of its child.
[[nodiscard]] Flow tree_flow(const Groups& groups, int root);
// From all groups to the root, and back.
[[nodiscard]] Flow star_flow(const Groups& groups, int root);

// Places 0 ... size - 1 in a binomial tree with its root at 0.
struct TreePlace {
  int parent = 0;
  std::vector<int> children{};  // those with the most descendants first
};
[[nodiscard]] TreePlace tree_place(int place, int size);

}  // namespace hvd
