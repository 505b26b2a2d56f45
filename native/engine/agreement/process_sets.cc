// Process sets come and go by agreement of all ranks of the job, in the same order on all of them.
#include "engine/agreement/agreement.h"

namespace hvd {

ProcessSet& Agreement::set_of(uint32_t id) {
  const auto found = sets_.find(id);
  if (found == sets_.end()) {
    throw Error(ErrorKind::kInternal, "a peer speaks of process set " + std::to_string(id) + ", which is unknown here");
  }
  return *found->second;
}

void Agreement::make_process_set(uint32_t id, std::vector<int> members) {
  auto made = std::make_unique<ProcessSet>(id, std::move(members), with_.job.rank);
  ProcessSet& set = *made;
  set.is_on_one_host = with_.job.num_local == with_.job.size;
  if (set.is_coordinator()) {
    std::vector<std::string> names;
    for (const int member : set.members) names.push_back(with_.job.name_of_rank(member));
    set.negotiator =
        std::make_unique<Negotiator>(std::move(names), NegotiatorOptions{.fusion_threshold = options_.fusion_threshold,
                                                                         .cache_capacity = options_.cache_capacity,
                                                                         .fuse_groups = options_.fuse_groups,
                                                                         .members = set.members,
                                                                         .is_job = id == 0});
  }
  with_.submission.add_process_set(id, set.members, set.set_rank);
  if (set.set_rank >= 0) with_.executions.add_process_set(id, set.members);
  sets_[id] = std::move(made);
  for (int peer = 0; peer < with_.job.size; ++peer) {
    if (const auto& end = with_.control.end_of(peer)) end_membership(set, peer, *end);
  }
  with_.counters.process_sets.store(sets_.size(), std::memory_order_relaxed);
}

void Agreement::remove_process_set(uint32_t id) {
  if (with_.executions.uses(id) || !set_of(id).pending.empty()) {
    throw Error(ErrorKind::kInternal, "process set " + std::to_string(id) + " was removed while it is in use");
  }
  sets_.erase(id);
  announcements_.erase(id);
  with_.executions.remove_process_set(id);
  with_.submission.remove_process_set(id);
  with_.counters.process_sets.store(sets_.size(), std::memory_order_relaxed);
}

void Agreement::end_membership(ProcessSet& set, int peer, const std::string& end) {
  const std::optional<int> member = set.set_rank_of(peer);
  if (!member) return;
  if (set.negotiator != nullptr) set.negotiator->member_left(end);
  if (set.coordinator() != peer) return;
  set.left = end;
  for (const auto& [name, operation] : set.pending) {
    with_.completion.finish(*operation, Error(ErrorKind::kShutDown, name + " failed: " + *set.left));
  }
  set.pending.clear();
}

}  // namespace hvd
