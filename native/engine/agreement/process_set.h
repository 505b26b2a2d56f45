// The engine's view of one process set: who is in it, what this rank has pending, and, on its coordinator, the
// negotiation. The coordinator is the member with set rank 0.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/agreement/negotiator.h"
#include "engine/execution/set_members.h"
#include "engine/submission/operation.h"

namespace hvd {

class ProcessSet : public SetMembers {
 public:
  using SetMembers::SetMembers;

  [[nodiscard]] int coordinator() const { return members.front(); }
  [[nodiscard]] bool is_coordinator() const { return set_rank == 0; }

  // How to announce an operation: by number if the name was agreed before with the same digest.
  [[nodiscard]] Announcement announcement_of(Operation& operation);
  // The pending operation that the coordinator means; throws if there is none. Learns numbers on the way.
  [[nodiscard]] std::shared_ptr<Operation> take(const NameRef& ref);
  // For a rank that has joined: what it takes part with instead of an operation of its own.
  [[nodiscard]] std::shared_ptr<Operation> stand_in(const NameRef& ref);

  bool is_on_one_host = false;  // like the whole job
  std::unordered_map<std::string, std::shared_ptr<Operation>> pending;
  std::unique_ptr<Negotiator> negotiator;  // on the coordinator
  std::optional<std::string> left;         // the coordinator has left: why
  bool has_left = false;                   // this rank, and its coordinator was told
  TimePoint next_deadlock_check{};
  bool coordinator_asked = false;  // because it gave no answer for long

 private:
  struct Known {
    uint32_t id;
    uint64_t digest;
  };
  void learn(const std::string& name, uint32_t number, uint64_t digest);
  void add_call_site(const std::string& call_site, Announcement& announcement);

  std::unordered_map<std::string, Known> known_;
  std::vector<std::string> names_by_id_;
  std::unordered_map<std::string, uint32_t> sites_;  // numbers of call sites that the coordinator knows
};

}  // namespace hvd
