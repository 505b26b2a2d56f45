// The end of a job because a caller has waited for an operation as long as it allows. The coordinator knows which ranks
// the operation lacks, so it is the one that ends the job, and all ranks raise the same error.
#include <algorithm>
#include <utility>

#include "engine/watch/stall_report.h"
#include "engine/watch/watch.h"

namespace hvd {
namespace {

// For the coordinator to hear of it, and to end the job.
constexpr Duration kCoordinatorAnswerTime = std::chrono::milliseconds(1500);

}  // namespace

void Watch::give_up(const std::shared_ptr<Operation>& operation, const std::string& text) {
  if (operation->done()) return;
  for (const Executions::Active& active : with_.executions.active()) {
    const auto& executed = active.operations;
    if (std::find(executed.begin(), executed.end(), operation) != executed.end()) end_stuck(active, text);
  }
  const std::string& name = operation->spec.name;
  const ProcessSet* set = find_set(operation->request.process_set);
  if (!is_pending(set, operation)) end_without_turn(set, *operation, text);
  if (set->negotiator != nullptr) {
    note_impatient(*set, set->set_rank, name, text);
  } else {
    Message message;
    message.kind = MessageKind::kGiveUp;
    message.set = set->id;
    message.text = text;
    message.waits = {{.set = set->id, .name = name}};
    with_.control.send(set->coordinator(), message);
  }
  given_up_.push_back({operation, text, std::chrono::steady_clock::now() + kCoordinatorAnswerTime});
}

void Watch::note_give_up(int peer, const Message& message) {
  const ProcessSet* set = find_set(message.set);
  if (set == nullptr) return;
  const std::optional<int> member = set->set_rank_of(peer);
  if (!member || set->negotiator == nullptr || message.waits.size() != 1) {
    throw Error(ErrorKind::kInternal, with_.job.name_of_rank(peer) + " gives up an operation that it cannot submit");
  }
  note_impatient(*set, *member, message.waits.front().name, message.text);
}

// What it lacks may be among the messages that this pass is still to read, and what is ready begins in this pass if
// there is room. What has ended is no longer meant, even if the same name comes in the same pass again.
void Watch::note_impatient(const ProcessSet& set, int member, const std::string& name, const std::string& text) {
  if (set.negotiator->is_ready(name) || stall_of(set, member, name)) impatient_.push_back({set.id, member, name, text});
}

void Watch::end_for_impatient() {
  for (const Impatient& one : std::exchange(impatient_, {})) {
    const ProcessSet* set = find_set(one.set);
    if (set != nullptr && set->negotiator != nullptr) end_if_waiting(*set, one.member, one.name, one.text);
  }
}

// Two members may receive from others under the same name.
std::optional<Stall> Watch::stall_of(const ProcessSet& set, int member, const std::string& name) const {
  const std::vector<Stall> stalls = set.negotiator->stalls(with_.job.clock->now());
  const auto found = std::find_if(stalls.begin(), stalls.end(), [&](const Stall& stall) {
    return stall.name == name && std::find(stall.waiting.begin(), stall.waiting.end(), member) != stall.waiting.end();
  });
  return found == stalls.end() ? std::nullopt : std::optional(*found);
}

// What has begun meanwhile goes on.
void Watch::end_if_waiting(const ProcessSet& set, int member, const std::string& name, const std::string& text) const {
  if (set.negotiator->is_ready(name)) end_without_room(set, name, text);
  const std::optional<Stall> found = stall_of(set, member, name);
  if (!found) return;
  Stall stall = *found;
  std::map<int, PositionReport> positions;
  for (int& member : stall.waiting) member = set.members[static_cast<size_t>(member)];
  for (int& member : stall.missing) {
    const std::string last = set.negotiator->last_announced(member, with_.job.clock->now());
    member = set.members[static_cast<size_t>(member)];
    positions[member].operations =
        last.empty() ? "has submitted nothing to this process set yet" : "last submitted " + last;
  }
  throw Error(ErrorKind::kStalled,
              stall_report(text, {stall}, positions, [this](int rank) { return with_.job.name_of_rank(rank); }));
}

// All ranks have submitted it.
void Watch::end_stuck(const Executions::Active& active, const std::string& text) const {
  throw Error(ErrorKind::kStalled, text + "\nAll ranks take part in " + active.operations.front()->spec.name +
                                       ", but " + awaited_data_of(active));
}

// All members have submitted it, and the coordinator lets others go first.
void Watch::end_without_room(const ProcessSet& set, const std::string& name, const std::string& text) const {
  const Executions::Active* first = nullptr;
  size_t num_others = 0;
  for (const Executions::Active& active : with_.executions.active()) {
    if (active.set->id != set.id || active.handed_over) continue;
    if (first == nullptr) {
      first = &active;
    } else {
      ++num_others;
    }
  }
  std::string ahead = "others are about to be executed before it";
  if (first != nullptr) {
    const Operation& operation = *first->operations.front();
    ahead = operation.spec.name;
    if (!operation.request.call_site.empty()) ahead += " at " + operation.request.call_site;
    if (num_others > 0) ahead += " and " + std::to_string(num_others) + " more";
    ahead += std::string(num_others > 0 ? " are" : " is") + " executed before it, and " + awaited_data_of(*first);
  }
  throw Error(ErrorKind::kStalled, text + "\nAll ranks have submitted " + name + ", but it has not begun: " + ahead);
}

// Agreed, but not executed; or a removal, which this rank has not announced.
void Watch::end_without_turn(const ProcessSet* set, const Operation& operation, const std::string& text) const {
  const std::string& name = operation.spec.name;
  if (set == nullptr || !traits_of(operation.spec.kind).is_transfer) {
    throw Error(ErrorKind::kStalled, text + "\n" + name + " waits for other operations of this rank");
  }
  const int peer = set->members.at(static_cast<size_t>(operation.state.peer));
  const auto [low, high] = std::minmax(peer, with_.job.rank);
  throw Error(ErrorKind::kStalled, text + "\n" + with_.job.name_of_rank(peer) + " has submitted its part of " + name +
                                       ", which waits until earlier transfers between " + with_.job.name_of_rank(low) +
                                       " and " + with_.job.name_of_rank(high) + " have ended");
}

std::string Watch::awaited_data_of(const Executions::Active& active) const {
  std::string awaited;
  for (int peer = 0; peer < with_.job.size; ++peer) {
    if (peer == with_.job.rank || !active.execution->waits_for(peer)) continue;
    awaited += (awaited.empty() ? "" : ", ") + with_.job.name_of_rank(peer);
  }
  return with_.job.name_of_rank(with_.job.rank) + " waits for data" + (awaited.empty() ? "" : " of " + awaited);
}

bool Watch::is_pending(const ProcessSet* set, const std::shared_ptr<Operation>& operation) {
  if (set == nullptr) return false;
  const auto found = set->pending.find(operation->spec.name);
  return found != set->pending.end() && found->second == operation;
}

void Watch::end_without(int rank, const std::string& name, const std::string& text) const {
  throw Error(ErrorKind::kStalled, text + "\nWhich ranks have not submitted " + name + " is known to " +
                                       with_.job.name_of_rank(rank) + ", which does not answer");
}

void Watch::check_given_up(TimePoint now) {
  std::erase_if(given_up_, [](const GivenUp& one) { return one.operation->done(); });
  const auto late =
      std::find_if(given_up_.begin(), given_up_.end(), [&](const GivenUp& one) { return one.until <= now; });
  if (late == given_up_.end()) return;
  const GivenUp given_up = std::move(*late);
  given_up_.erase(late);
  const Operation& operation = *given_up.operation;
  const ProcessSet* set = find_set(operation.request.process_set);
  if (is_pending(set, given_up.operation) && set->negotiator == nullptr)
    end_without(set->coordinator(), operation.spec.name, given_up.text);
  give_up(given_up.operation, given_up.text);
}

}  // namespace hvd
