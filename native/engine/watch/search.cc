// The search for a deadlock: from the ranks that an operation lacks to what these wait for, in whatever process set
// that is, and to the ranks that those operations lack.
#include <algorithm>

#include "engine/watch/watch.h"

namespace hvd {
namespace {

// From one process set to another. Longer chains are not followed.
constexpr int kMostRounds = 12;

}  // namespace

// What ranks tell was true at different moments. Who is held stays so while what holds it is not ready, so positions
// come first, and then, once more, which operations are not ready: those that are older than the whole search were
// waited for at the moment of the last position.
void Watch::go_on_with_deadlock(Inquiry inquiry) {
  const ProcessSet* set = find_set(inquiry.set);
  if (set == nullptr || set->negotiator == nullptr) return;
  const Evidence evidence = evidence_of(inquiry);
  const std::optional<OpenQuestions> open = open_questions(evidence);
  if (!open || ++inquiry.num_rounds > kMostRounds) return;
  Questions questions;
  for (const int rank : open->ranks) questions[rank] = {};
  for (const Wait& wait : open->waits) add_question(questions, wait);
  if (open->none() && !inquiry.told.empty() && !inquiry.confirms) {
    inquiry.confirms = true;
    for (const auto& [wait, unready] : std::exchange(inquiry.told, {})) add_question(questions, wait);
  }
  if (!questions.empty()) {
    ask_on(std::move(inquiry), questions);
    return;
  }
  const Duration passed = std::chrono::steady_clock::now() - inquiry.started;
  if (!is_deadlock(evidence, std::max<Duration>(options_.deadlock_timeout, passed))) return;
  inquiry.stalls = set->negotiator->stalls(with_.job.clock->now());
  for (const auto& [wait, unready] : evidence.unready) {
    if (wait.set != set->id) inquiry.told[wait] = unready;
  }
  report(inquiry);
}

// This rank knows by itself of the operations that it coordinates.
Evidence Watch::evidence_of(const Inquiry& inquiry) const {
  Evidence evidence;
  evidence.unready = inquiry.told;
  for (const auto& [rank, answer] : inquiry.answers) {
    if (answer) evidence.positions[rank] = *answer;
  }
  const ProcessSet& set = *find_set(inquiry.set);
  for (const Stall& stall : set.negotiator->stalls(with_.job.clock->now())) {
    evidence.unready[{.set = set.id, .name = stall.name}] = unready_of(set, stall);
  }
  for (bool more = true; more;) {
    more = false;
    const std::optional<OpenQuestions> open = open_questions(evidence);
    if (!open) break;
    for (const Unready& unready : unready_of({open->waits.begin(), open->waits.end()})) {
      evidence.unready[unready.wait] = unready;
      more = true;
    }
  }
  return evidence;
}

// Of those that this rank coordinates; without missing ranks if it is not waiting for members. Each process set is
// looked through once: a model may have thousands of operations in flight.
std::vector<Unready> Watch::unready_of(const std::vector<Wait>& waits) const {
  std::map<uint32_t, std::map<std::string, Unready>> by_set;
  std::vector<Unready> found;
  for (const Wait& wait : waits) {
    if (!coordinates(wait)) continue;
    const auto [looked, is_first] = by_set.try_emplace(wait.set);
    if (is_first) {
      const ProcessSet& set = *find_set(wait.set);
      for (const Stall& stall : set.negotiator->stalls(with_.job.clock->now())) {
        looked->second.emplace(stall.name, unready_of(set, stall));
      }
    }
    const auto unready = looked->second.find(wait.name);
    found.push_back(unready != looked->second.end() ? unready->second : Unready{.wait = wait});
  }
  return found;
}

Unready Watch::unready_of(const ProcessSet& set, const Stall& stall) {
  Unready unready{.wait = {.set = set.id, .name = stall.name}, .age = stall.age};
  for (const int member : stall.waiting) unready.waiting.push_back(set.members[static_cast<size_t>(member)]);
  for (const int member : stall.missing) unready.missing.push_back(set.members[static_cast<size_t>(member)]);
  return unready;
}

bool Watch::coordinates(const Wait& wait) const {
  const ProcessSet* set = find_set(wait.set);
  return set != nullptr && set->negotiator != nullptr;
}

void Watch::add_question(Questions& questions, const Wait& wait) const {
  const ProcessSet* set = find_set(wait.set);
  if (set == nullptr) return;  // it is gone, or this rank is yet to make it
  questions[set->coordinator()].push_back(wait);
}

}  // namespace hvd
