#include "engine/agreement/agreement.h"

#include <algorithm>
#include <numeric>

namespace hvd {

Agreement::Agreement(Neighbors neighbors, AgreementOptions options) : with_(neighbors), options_(options) {
  std::vector<int> everybody(static_cast<size_t>(with_.job.size));
  std::iota(everybody.begin(), everybody.end(), 0);
  make_process_set(0, std::move(everybody));
}

bool Agreement::take(const std::vector<std::shared_ptr<Operation>>& submitted, std::vector<Submission::Leave> leaves) {
  std::move(leaves.begin(), leaves.end(), std::back_inserter(leaves_));
  const bool left = leave_idle_sets();
  if (submitted.empty() && removals_.empty()) return left;
  const size_t num_removals = removals_.size();
  for (const auto& operation : std::exchange(removals_, {})) announce_submission(operation);
  const bool removes = removals_.size() < num_removals;
  for (const auto& operation : submitted) announce_submission(operation);
  for (auto& [id, list] : announcements_) {
    if (!list.empty()) send_announcements(*sets_.at(id), list);
  }
  return !submitted.empty() || removes || left;
}

void Agreement::announce_submission(const std::shared_ptr<Operation>& operation) {
  if (operation->spec.kind == OpKind::kRemoveProcessSet && !may_announce_removal(*operation)) {
    removals_.push_back(operation);
    return;
  }
  ProcessSet& set = set_of(operation->request.process_set);
  if (set.left) {
    with_.completion.finish(*operation, Error(ErrorKind::kShutDown, operation->spec.name + " failed: " + *set.left));
    return;
  }
  with_.executions.shared_arrays().find_place(*operation);
  Announcement announcement = set.announcement_of(*operation);
  if (!announcement.full) with_.counters.announced_by_id.fetch_add(1, std::memory_order_relaxed);
  with_.observer.record_submission(*operation);
  set.pending.emplace(operation->spec.name, operation);
  announcements_[operation->request.process_set].push_back(std::move(announcement));
}

// The other ranks may execute operations of the set only as long as this rank does, so these come first; also what is
// left to a device.
bool Agreement::may_announce_removal(const Operation& operation) const {
  return !is_in_use(static_cast<uint32_t>(operation.spec.ranks.front()));
}

void Agreement::handle(int peer, Message& message) {
  if (message.set >= next_set_id_) {  // the peer has heard of the new set before this rank
    std::vector<std::pair<int, Message>>& early = early_messages_[message.set];
    early.emplace_back(peer, std::move(message));
    return;
  }
  ProcessSet& set = set_of(message.set);
  if (message.kind == MessageKind::kAnnounce) {
    const std::optional<int> member = set.set_rank_of(peer);
    if (!member || set.negotiator == nullptr) {
      throw Error(ErrorKind::kInternal, with_.job.name_of_rank(peer) + " announced an operation to the wrong rank");
    }
    for (Announcement& announcement : message.announcements) announce(set, *member, std::move(announcement));
    return;
  }
  if (message.kind == MessageKind::kLeave) {
    note_leave(set, peer, message);
    return;
  }
  if (peer != set.coordinator()) {
    throw Error(ErrorKind::kInternal,
                with_.job.name_of_rank(peer) + " answers for a process set that it does not coordinate");
  }
  if (message.kind == MessageKind::kDissolve) {
    dissolve(set, peer);
    return;
  }
  if (message.kind == MessageKind::kResend) announce_again(set, message.digest);
  for (const Response& response : message.responses) apply(set, response);
}

// Leaves the list empty.
void Agreement::send_announcements(ProcessSet& set, std::vector<Announcement>& announcements) {
  if (set.is_coordinator()) {
    for (Announcement& announcement : announcements) announce(set, set.set_rank, std::move(announcement));
  } else {
    Message message;
    message.kind = MessageKind::kAnnounce;
    message.set = set.id;
    message.announcements.swap(announcements);
    with_.control.send(set.coordinator(), message);
    announcements.swap(message.announcements);
  }
  announcements.clear();
}

// On the coordinator: a member is ready for a name.
void Agreement::announce(ProcessSet& set, int member, Announcement&& announcement) {
  const uint64_t digest = announcement.digest;
  with_.observer.record_announcement(set.members[static_cast<size_t>(member)], announcement);
  if (set.negotiator->announce(member, std::move(announcement), with_.job.clock->now())) return;
  if (member == set.set_rank) {
    announce_again(set, digest);
    return;
  }
  Message message;
  message.kind = MessageKind::kResend;
  message.set = set.id;
  message.digest = digest;
  with_.control.send(set.members[static_cast<size_t>(member)], message);
}

// The coordinator gave the number to another name meanwhile. That name may be pending here under the same number, so
// the digest has to tell which one is meant.
void Agreement::announce_again(ProcessSet& set, uint64_t digest) {
  for (const auto& [name, operation] : set.pending) {
    if (!operation->state.announced_id || operation->state.digest != digest) continue;
    Announcement announcement = set.announcement_of(*operation);
    announcement.full = true;
    announcement.spec = operation->spec;
    operation->state.announced_id.reset();
    std::vector<Announcement> again;
    again.push_back(std::move(announcement));
    send_announcements(set, again);
    return;
  }
  throw Error(ErrorKind::kInternal, "the coordinator asks again for an operation that is not pending");
}

// An answer may add or remove a process set.
bool Agreement::answer_all() {
  bool any = false;
  for (auto entry = sets_.begin(); entry != sets_.end();) {
    const uint32_t id = entry->first;
    any = answer(*entry->second) || any;
    entry = sets_.upper_bound(id);
  }
  return any;
}

// On the coordinator: tells all members, this rank last, what has been agreed.
bool Agreement::answer(ProcessSet& set) {
  if (set.negotiator == nullptr || !set.negotiator->has_responses()) return false;
  std::vector<Response> responses = set.negotiator->take_responses(with_.executions.room_of(set));
  const std::vector<Directed> directed = set.negotiator->take_directed();
  if (responses.empty() && directed.empty()) return false;
  with_.observer.record_cycle();
  Message message;
  message.kind = MessageKind::kRespond;
  message.set = set.id;
  for (const auto& [member, response] : directed) {
    if (member == set.set_rank) continue;
    message.responses = {response};
    with_.control.send(set.members[static_cast<size_t>(member)], message);
  }
  message.responses = std::move(responses);
  if (set.size() > 1 && !message.responses.empty()) {
    const Bytes bytes = message.encode();
    for (const int member : set.members) {
      if (member != with_.job.rank) with_.control.send(member, bytes);
    }
  }
  for (const Response& response : message.responses) apply(set, response);
  for (const auto& [member, response] : directed) {
    if (member == set.set_rank) apply(set, response);
  }
  return true;
}

void Agreement::leave(int peer) {
  const std::optional<std::string>& end = with_.control.end_of(peer);
  for (const auto& [id, set] : sets_) end_membership(*set, peer, *end);
  end_left_sets();
}

void Agreement::fail(const Error& error) {
  for (const auto& operation : in_hand_) with_.completion.fail(*operation, error);
  in_hand_.clear();
  for (const auto& operation : removals_) with_.completion.fail(*operation, error);
  removals_.clear();
  leaves_.clear();
  for (const auto& [id, set] : sets_) {
    for (const auto& [name, operation] : set->pending) {
      with_.executions.shared_arrays().detach(*operation);
      with_.completion.fail(*operation, error);
    }
    set->pending.clear();
  }
}

ProcessSet* Agreement::find(uint32_t id) const {
  const auto found = sets_.find(id);
  return found == sets_.end() ? nullptr : found->second.get();
}

bool Agreement::has_pending() const {
  return std::any_of(sets_.begin(), sets_.end(), [](const auto& entry) { return !entry.second->pending.empty(); });
}

bool Agreement::has_responses() const {
  return std::any_of(sets_.begin(), sets_.end(), [](const auto& entry) {
    return entry.second->negotiator != nullptr && entry.second->negotiator->has_responses();
  });
}

std::string Agreement::last_submitted_by(int peer) const {
  for (const auto& [id, set] : sets_) {
    const std::optional<int> member = set->set_rank_of(peer);
    if (!member || set->negotiator == nullptr) continue;
    std::string last = set->negotiator->last_announced(*member, with_.job.clock->now());
    if (!last.empty()) return last;
  }
  return {};
}

}  // namespace hvd
