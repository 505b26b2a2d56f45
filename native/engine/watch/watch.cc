#include "engine/watch/watch.h"

#include <algorithm>
#include <set>
#include <sstream>

namespace hvd {
namespace {

// Without a setting, ranks may be apart for half as long again as they were lately, and for this long in any case.
constexpr Duration kLeastPatience = std::chrono::seconds(10);
constexpr Duration kMostPatience = std::chrono::minutes(10);
// When ranks all wait for each other, no patience helps.
constexpr Duration kDeadlockTime = std::chrono::milliseconds(700);
// How often to ask again whether what takes so long is a deadlock, and will never end.
constexpr Duration kMostDeadlockPeriod = std::chrono::seconds(10);
// The coordinator reports in time, unless it is in trouble itself.
constexpr Duration kCoordinatorTime = std::chrono::seconds(3);

// Such as "60 s" or "0.5 s".
std::string in_words(Duration duration) {
  std::ostringstream text;
  text << std::chrono::duration<double>(duration).count() << " s";
  return text.str();
}

// A rank that waits for others is not to blame for not having come to its join yet.
void excuse_waiting_ranks(std::vector<Stall>& stalls) {
  std::set<int> waiting;
  for (const Stall& stall : stalls) {
    if (stall.name != kJoinName) waiting.insert(stall.waiting.begin(), stall.waiting.end());
  }
  for (Stall& stall : stalls) {
    if (stall.name == kJoinName) std::erase_if(stall.missing, [&](int member) { return waiting.contains(member); });
  }
}

}  // namespace

Duration Watch::patience_of(const ProcessSet& set) const {
  if (options_.stall_check_time) return *options_.stall_check_time;
  const Duration usual = set.negotiator != nullptr ? set.negotiator->usual_wait() : Duration::zero();
  return std::clamp(usual + usual / 2, kLeastPatience, kMostPatience);
}

void Watch::check() {
  const TimePoint now = with_.job.clock->now();
  if (!inquirers_.empty()) answer_inquirers(std::chrono::steady_clock::now());
  if (inquiry_) conclude(std::chrono::steady_clock::now());
  if (!impatient_.empty()) end_for_impatient();
  if (!given_up_.empty()) check_given_up(std::chrono::steady_clock::now());
  if (!watches() || now < next_check_) return;
  const Duration period = options_.stall_check_time.value_or(kLeastPatience) / 4;
  next_check_ = now + std::clamp<Duration>(period, std::chrono::milliseconds(10), std::chrono::milliseconds(500));
  check_stuck_executions(now);
  for (const auto& [id, set] : with_.agreement.sets()) {
    if (set->negotiator != nullptr) {
      check_stalls_of(*set, now);
    } else if (set->set_rank >= 0) {
      check_coordinator_of(*set, now);
    }
  }
}

void Watch::check_stalls_of(ProcessSet& set, TimePoint now) {
  if (inquiry_ || !set.negotiator->has_pending()) return;
  using Purpose = Inquiry::Purpose;
  Inquiry inquiry;
  inquiry.set = set.id;
  const Duration patience = patience_of(set);
  if (options_.stall_shutdown_time > Duration::zero()) {
    inquiry.purpose = Purpose::kStallEnds;
    inquiry.stalls =
        set.negotiator->take_stalls(now, options_.stall_shutdown_time, Negotiator::Purpose::kWarning, true);
  }
  if (inquiry.stalls.empty()) {
    inquiry.purpose = Purpose::kStall;
    inquiry.stalls = set.negotiator->take_stalls(now, patience, Negotiator::Purpose::kWarning);
  }
  if (inquiry.stalls.empty()) {
    inquiry.purpose = Purpose::kDeadlock;
    inquiry.stalls = set.negotiator->take_stalls(now, std::min(kDeadlockTime, patience), Negotiator::Purpose::kProbe);
  }
  if (inquiry.stalls.empty()) {
    look_for_deadlock(set, now);
    return;
  }
  excuse_waiting_ranks(inquiry.stalls);
  std::set<int> missing;
  for (const Stall& stall : inquiry.stalls) {
    for (const int member : stall.missing) missing.insert(set.members[static_cast<size_t>(member)]);
  }
  if (missing.empty()) return;
  const Duration age = inquiry.stalls.front().age;
  inquiry.headline = inquiry.purpose == Purpose::kDeadlock
                         ? std::string(kDeadlockHeadline)
                         : "Operations have waited for up to " + std::to_string(in_seconds(age)) +
                               " s, because one or more ranks have not submitted them.";
  ask(std::move(inquiry), {missing.begin(), missing.end()});
}

// Ranks that have waited for each other for long are asked whether anything else could make them go on.
void Watch::look_for_deadlock(ProcessSet& set, TimePoint now) {
  const Duration timeout = options_.deadlock_timeout;
  if (timeout <= Duration::zero() || now < set.next_deadlock_check) return;
  std::vector<Stall> stalls = set.negotiator->stalls(now);
  if (stalls.empty() || stalls.front().age < timeout) return;
  set.next_deadlock_check = now + std::min(timeout / 4, kMostDeadlockPeriod);
  std::set<int> missing;
  for (const Stall& stall : stalls) {
    for (const int member : stall.missing) missing.insert(set.members[static_cast<size_t>(member)]);
  }
  if (missing.empty()) return;
  Inquiry inquiry;
  inquiry.purpose = Inquiry::Purpose::kDeadlockEnds;
  inquiry.set = set.id;
  inquiry.headline = std::string(kDeadlockHeadline) + " As this never ends by itself, the job ends after " +
                     in_words(timeout) + " (HOROVOD_DEADLOCK_TIMEOUT).";
  inquiry.stalls = std::move(stalls);
  ask(std::move(inquiry), {missing.begin(), missing.end()});
}

// On other members than the coordinator: it may be the coordinator that does nothing any more.
void Watch::check_coordinator_of(ProcessSet& set, TimePoint now) {
  if (inquiry_ || set.pending.empty() || set.left || set.coordinator_asked) return;
  const auto oldest = std::min_element(set.pending.begin(), set.pending.end(), [](const auto& a, const auto& b) {
    return a.second->state.submitted < b.second->state.submitted;
  });
  const Operation& operation = *oldest->second;
  const Duration age = now - operation.state.submitted;
  if (age < patience_of(set) + kCoordinatorTime) return;
  set.coordinator_asked = true;
  Inquiry inquiry;
  inquiry.purpose = Inquiry::Purpose::kCoordinator;
  inquiry.set = set.id;
  inquiry.headline = operation.spec.name + " has waited for " + std::to_string(in_seconds(age)) + " s on " +
                     with_.job.name_of_rank(with_.job.rank) + ", and " + with_.job.name_of_rank(set.coordinator()) +
                     ", which collects what the ranks submit, does not answer.";
  Stall stall{.name = operation.spec.name, .waiting = {}, .call_sites = {}, .missing = {0}, .age = age};
  stall.waiting.push_back(set.set_rank);
  stall.call_sites.push_back(operation.request.call_site);
  inquiry.stalls.push_back(std::move(stall));
  ask(std::move(inquiry), {set.coordinator()});
}

// An operation that all ranks agreed on stands still: a rank is stopped, or its network is.
void Watch::check_stuck_executions(TimePoint now) {
  if (with_.executions.active().empty() || inquiry_) return;
  const Duration stuck = now - with_.executions.last_progress();
  const bool ends = options_.stall_shutdown_time > Duration::zero() && stuck >= options_.stall_shutdown_time;
  const Executions::Active& active = with_.executions.active().front();
  if (!ends && (stuck_is_reported() || stuck < patience_of(*find_set(active.set->id)))) return;
  Inquiry inquiry;
  inquiry.purpose = ends ? Inquiry::Purpose::kStallEnds : Inquiry::Purpose::kStuck;
  inquiry.set = active.set->id;
  inquiry.executing = true;
  inquiry.headline = active.operations.front()->spec.name + " has made no progress for " +
                     std::to_string(in_seconds(stuck)) + " s, though all ranks take part in it. " +
                     with_.job.name_of_rank(with_.job.rank) + " waits for other ranks.";
  Stall stall{
      .name = active.operations.front()->spec.name, .waiting = {}, .call_sites = {}, .missing = {}, .age = stuck};
  std::vector<int> peers;
  for (int peer = 0; peer < with_.job.size; ++peer) {
    if (peer == with_.job.rank || !active.execution->waits_for(peer)) continue;
    peers.push_back(peer);
    if (const auto member = active.set->set_rank_of(peer)) stall.missing.push_back(*member);
  }
  stall.waiting.push_back(active.set->set_rank);
  stall.call_sites.push_back(active.operations.front()->request.call_site);
  inquiry.stalls.push_back(std::move(stall));
  stuck_reported_ = with_.executions.num_advances();
  ask(std::move(inquiry), peers);
}

bool Watch::stuck_is_reported() const { return stuck_reported_ == with_.executions.num_advances(); }

std::optional<Duration> Watch::until_check() const {
  if (!watches()) return std::nullopt;
  const Agreement::ProcessSets& sets = with_.agreement.sets();
  const bool pending =
      !with_.executions.active().empty() || std::any_of(sets.begin(), sets.end(), [](const auto& entry) {
        const ProcessSet& set = *entry.second;
        return !set.pending.empty() || (set.negotiator != nullptr && set.negotiator->has_pending());
      });
  if (!pending) return std::nullopt;
  return std::max(next_check_ - with_.job.clock->now(), Duration::zero());
}

}  // namespace hvd
