// Who takes part in a batch: what executions know of a process set.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

namespace hvd {

struct SetMembers {
  SetMembers(uint32_t id, std::vector<int> members, int rank) : id(id), members(std::move(members)) {
    set_rank = set_rank_of(rank).value_or(-1);
  }

  [[nodiscard]] int size() const { return static_cast<int>(members.size()); }
  [[nodiscard]] std::optional<int> set_rank_of(int rank) const {
    const auto found = std::find(members.begin(), members.end(), rank);
    if (found == members.end()) return std::nullopt;
    return static_cast<int>(found - members.begin());
  }

  uint32_t id;
  std::vector<int> members;  // global ranks, rising
  int set_rank = -1;         // of this rank; negative if it is no member
  uint32_t next_sequence = 0;
  std::map<int, uint32_t> next_transfer;  // by set rank of the other end: of its transfers with this rank
};

}  // namespace hvd
