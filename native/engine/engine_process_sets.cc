// Process sets come and go by agreement of all ranks of the job, in the same order on all of them.
#include <algorithm>
#include <cstring>

#include "engine/engine.h"
#include "engine/stand_in.h"

namespace hvd {

// With queue_mutex_ held.
void Engine::check_new_process_set(const Operation& operation) const {
  const std::vector<int64_t>& ranks = operation.spec.ranks;
  const auto refuse = [&](const std::string& what) { throw Error(ErrorKind::kUsage, "add_process_set: " + what); };
  if (ranks.empty()) refuse("a process set needs at least one rank");
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] < 0 || ranks[i] >= size_) {
      refuse("rank " + std::to_string(ranks[i]) + " does not exist; the size of the job is " + std::to_string(size_));
    }
    if (i > 0 && ranks[i] == ranks[i - 1]) refuse("rank " + std::to_string(ranks[i]) + " is in the list twice");
    if (i > 0 && ranks[i] < ranks[i - 1]) refuse("the ranks must rise");
  }
  for (const auto& [id, membership] : memberships_) {
    if (std::equal(ranks.begin(), ranks.end(), membership.members.begin(), membership.members.end())) {
      refuse("there is a process set of these ranks already");
    }
  }
}

// With queue_mutex_ held. From now on nothing more may be submitted to the set here.
void Engine::check_removal(const Operation& operation) {
  const std::vector<int64_t>& ids = operation.spec.ranks;
  const auto found = ids.size() == 1 ? memberships_.find(static_cast<uint32_t>(ids.front())) : memberships_.end();
  if (found == memberships_.end() || found->first == 0 || found->second.closing) {
    throw Error(ErrorKind::kUsage,
                "remove_process_set: there is no such process set, or it is the one of all ranks, which stays");
  }
  found->second.closing = true;
}

// The other ranks may execute operations of the set only as long as this rank does, so these come first; also what is
// left to a device.
bool Engine::may_announce_removal(const Operation& operation) const {
  const auto id = static_cast<uint32_t>(operation.spec.ranks.front());
  if (std::any_of(active_.begin(), active_.end(), [id](const Active& active) { return active.set->id == id; })) {
    return false;
  }
  const std::lock_guard lock(queue_mutex_);
  return memberships_.at(id).names_in_flight.empty();
}

void Engine::make_process_set(uint32_t id, std::vector<int> members) {
  auto made = std::make_unique<ProcessSet>(id, std::move(members), rank_);
  ProcessSet& set = *made;
  if (set.is_coordinator()) {
    std::vector<std::string> names;
    for (const int member : set.members) names.push_back(name_of_rank(member));
    set.negotiator =
        std::make_unique<Negotiator>(std::move(names), NegotiatorOptions{.fusion_threshold = options_.fusion_threshold,
                                                                         .cache_capacity = options_.cache_capacity,
                                                                         .fuse_groups = options_.fuse_groups,
                                                                         .members = set.members});
  }
  {
    const std::lock_guard lock(queue_mutex_);
    memberships_[id] = {set.members, set.set_rank, {}, false};
  }
  if (set.set_rank >= 0) backend_->add_process_set(id, set.members);
  sets_[id] = std::move(made);
  for (int peer = 0; peer < size_; ++peer) {
    if (const auto& end = left_peers_[static_cast<size_t>(peer)]) leave_process_set(set, peer, *end);
  }
}

void Engine::remove_process_set(uint32_t id) {
  const bool in_use =
      std::any_of(active_.begin(), active_.end(), [id](const Active& active) { return active.set->id == id; });
  if (in_use || !set_of(id).pending.empty()) {
    throw Error(ErrorKind::kInternal, "process set " + std::to_string(id) + " was removed while it is in use");
  }
  sets_.erase(id);
  backend_->remove_process_set(id);
  if (gpu_backend_ != nullptr) gpu_backend_->remove_process_set(id);
  const std::lock_guard lock(queue_mutex_);
  memberships_.erase(id);
}

// All ranks of `set` agreed on something that moves no data.
void Engine::agree_on(ProcessSet& set, Operation& operation, const Response& response) {
  const std::vector<int64_t>& ranks = operation.spec.ranks;
  if (operation.spec.kind == OpKind::kAddProcessSet) {
    const uint32_t id = next_set_id_++;
    operation.result.new_process_set = id;
    make_process_set(id, std::vector<int>(ranks.begin(), ranks.end()));
    const auto early = early_messages_.extract(id);
    if (early.empty()) return;
    for (const auto& [peer, message] : early.mapped()) handle(peer, message);
  } else if (operation.spec.kind == OpKind::kRemoveProcessSet) {
    remove_process_set(static_cast<uint32_t>(ranks.at(0)));
  } else if (operation.spec.kind == OpKind::kShareMemory) {
    share_memory(operation);
  } else if (operation.spec.kind == OpKind::kJoin) {
    int32_t last = -1;
    if (response.payload.size() == sizeof(last)) std::memcpy(&last, response.payload.data(), sizeof(last));
    operation.result.last_joined = set.members.at(static_cast<size_t>(last));
  }
}

}  // namespace hvd
