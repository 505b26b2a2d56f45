// A process set that its members leave, each when it likes and without a wait. It ends when all have left it.
//
// A member tells the coordinator of the set that it has left when nothing of the set is in flight here. So that is the
// last that the coordinator hears of it, and what others submit afterwards cannot be done. The coordinator tells all
// ranks of the end, as all know the set; the order of ends means nothing, as no number is used twice.
#include <algorithm>

#include "engine/agreement/agreement.h"

namespace hvd {

bool Agreement::leave_idle_sets() {
  if (leaves_.empty()) return false;
  bool any = false;
  for (const Submission::Leave& leave : std::exchange(leaves_, {})) {
    if (is_in_use(leave.set)) {
      leaves_.push_back(leave);
      continue;
    }
    leave_process_set(leave);
    any = true;
  }
  return any;
}

bool Agreement::is_in_use(uint32_t set) const { return with_.executions.uses(set) || !with_.submission.is_idle(set); }

bool Agreement::may_leave() const {
  return std::any_of(leaves_.begin(), leaves_.end(), [this](const auto& leave) { return !is_in_use(leave.set); });
}

void Agreement::leave_process_set(const Submission::Leave& leave) {
  ProcessSet& set = set_of(leave.set);
  if (set.is_coordinator()) {
    withdraw(set, set.set_rank, leave.call_site);
    return;
  }
  set.has_left = true;
  if (is_over(set)) {
    end_process_set(set);
    return;
  }
  Message message;
  message.kind = MessageKind::kLeave;
  message.set = set.id;
  message.text = leave.call_site;
  with_.control.send(set.coordinator(), message);
}

void Agreement::note_leave(ProcessSet& set, int peer, const Message& message) {
  const std::optional<int> member = set.set_rank_of(peer);
  if (!member || set.negotiator == nullptr || set.id == 0) {
    throw Error(ErrorKind::kInternal, with_.job.name_of_rank(peer) + " leaves a process set that it cannot leave here");
  }
  withdraw(set, *member, message.text);
}

// On the coordinator. It has answered all that the member submitted.
void Agreement::withdraw(ProcessSet& set, int member, const std::string& call_site) {
  const std::string& rank = with_.job.name_of_rank(set.members[static_cast<size_t>(member)]);
  set.negotiator->member_withdrew(member, rank + " has left the process set" +
                                              (call_site.empty() ? "" : " at " + call_site) +
                                              ", so operations that need it cannot be done any more");
  if (is_over(set)) end_process_set(set);
}

// Whether no member can submit anything to the set any more. Who has said goodbye has left all sets; if that is the
// coordinator, nobody tells this rank of the end.
bool Agreement::is_over(const ProcessSet& set) const {
  if (set.negotiator == nullptr) return set.left && set.has_left;
  for (int member = 0; member < set.size(); ++member) {
    const int rank = set.members[static_cast<size_t>(member)];
    if (!set.negotiator->has_withdrawn(member) && (rank == with_.job.rank || !with_.control.end_of(rank))) return false;
  }
  return true;
}

void Agreement::end_process_set(const ProcessSet& set) {
  Message message;
  message.kind = MessageKind::kDissolve;
  message.set = set.id;
  for (int peer = 0; peer < with_.job.size && set.is_coordinator(); ++peer) {
    if (peer != with_.job.rank) with_.control.send(peer, message);
  }
  remove_process_set(set.id);
}

void Agreement::end_left_sets() {
  std::vector<const ProcessSet*> over;
  for (const auto& [id, set] : sets_) {
    if (id != 0 && is_over(*set)) over.push_back(set.get());
  }
  for (const ProcessSet* set : over) end_process_set(*set);
}

void Agreement::dissolve(const ProcessSet& set, int peer) {
  const bool expected = set.id != 0 && (set.set_rank < 0 || with_.submission.is_leaving(set.id));
  if (!expected) {
    throw Error(ErrorKind::kInternal, with_.job.name_of_rank(peer) + " ends a process set that this rank has not left");
  }
  remove_process_set(set.id);
}

}  // namespace hvd
