// Stalls: operations that do not become ready or do not go on, the ranks that are missing, and where those are.
#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>

#include "engine/deadlock.h"
#include "engine/engine.h"
#include "engine/stall_report.h"

namespace hvd {
namespace {

// Without a setting, ranks may be apart for half as long again as they were lately, and for this long in any case.
constexpr Duration kLeastPatience = std::chrono::seconds(10);
constexpr Duration kMostPatience = std::chrono::minutes(10);
// When ranks all wait for each other, no patience helps.
constexpr Duration kDeadlockTime = std::chrono::milliseconds(700);
// How often to ask again whether what takes so long is a deadlock, and will never end.
constexpr Duration kMostDeadlockPeriod = std::chrono::seconds(10);
constexpr Duration kInquiryTime = std::chrono::milliseconds(1500);
// The coordinator reports in time, unless it is in trouble itself.
constexpr Duration kCoordinatorTime = std::chrono::seconds(3);

constexpr const char* kDeadlockHeadline =
    "Ranks wait for each other: each of these operations needs a rank that waits for another one of them. The ranks "
    "took different branches, left an operation out, or submit them in different orders.";

int64_t in_seconds(Duration duration) { return std::chrono::duration_cast<std::chrono::seconds>(duration).count(); }

// Such as "60 s" or "0.5 s".
std::string in_words(Duration duration) {
  std::ostringstream text;
  text << std::chrono::duration<double>(duration).count() << " s";
  return text.str();
}

// The state letter of /proc/<pid>/stat (proc(5)), or 0.
char process_state(int pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  if (pid <= 0 || !std::getline(file, text)) return 0;
  const size_t end = text.rfind(')');  // of the command, which may hold anything
  return end != std::string::npos && end + 2 < text.size() ? text[end + 2] : char{0};
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

bool Engine::watches_stalls() const { return options_.stall_check_time != Duration::zero(); }

Duration Engine::patience_of(const ProcessSet& set) const {
  if (options_.stall_check_time) return *options_.stall_check_time;
  const Duration usual = set.negotiator != nullptr ? set.negotiator->usual_wait() : Duration::zero();
  return std::clamp(usual + usual / 2, kLeastPatience, kMostPatience);
}

void Engine::check_stalls() {
  const TimePoint now = options_.clock->now();
  if (!inquirers_.empty()) answer_inquirers(std::chrono::steady_clock::now());
  if (inquiry_) conclude_inquiry(std::chrono::steady_clock::now());
  if (!watches_stalls() || now < next_stall_check_) return;
  const Duration period = options_.stall_check_time.value_or(kLeastPatience) / 4;
  next_stall_check_ = now + std::clamp<Duration>(period, std::chrono::milliseconds(10), std::chrono::milliseconds(500));
  check_stuck_executions(now);
  for (const auto& [id, set] : sets_) {
    if (set->negotiator != nullptr) {
      check_stalls_of(*set, now);
    } else if (set->set_rank >= 0) {
      check_coordinator_of(*set, now);
    }
  }
}

void Engine::check_stalls_of(ProcessSet& set, TimePoint now) {
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
void Engine::look_for_deadlock(ProcessSet& set, TimePoint now) {
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

// What the ranks told was true at different moments, but who is held stays so while the names that hold it are not
// ready: those that are old enough now were not in between.
void Engine::end_deadlock(Inquiry inquiry) {
  const auto found = sets_.find(inquiry.set);
  if (found == sets_.end() || found->second->negotiator == nullptr) return;
  const ProcessSet& set = *found->second;
  inquiry.stalls = set.negotiator->stalls(options_.clock->now());
  std::map<int, PositionReport> positions;
  for (const auto& [rank, answer] : inquiry.answers) {
    const std::optional<int> member = set.set_rank_of(rank);
    if (member && answer) positions[*member] = *answer;
  }
  const Duration age = std::max<Duration>(options_.deadlock_timeout, kInquiryTime);
  if (is_deadlock(set.id, inquiry.stalls, positions, age)) report(inquiry);
}

// On other members than the coordinator: it may be the coordinator that does nothing any more.
void Engine::check_coordinator_of(ProcessSet& set, TimePoint now) {
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
                     name_of_rank(rank_) + ", and " + name_of_rank(set.coordinator()) +
                     ", which collects what the ranks submit, does not answer.";
  Stall stall{.name = operation.spec.name, .waiting = {}, .call_sites = {}, .missing = {0}, .age = age};
  stall.waiting.push_back(set.set_rank);
  stall.call_sites.push_back(operation.request.call_site);
  inquiry.stalls.push_back(std::move(stall));
  ask(std::move(inquiry), {set.coordinator()});
}

// An operation that all ranks agreed on stands still: a rank is stopped, or its network is.
void Engine::check_stuck_executions(TimePoint now) {
  if (active_.empty() || inquiry_) return;
  const Duration stuck = now - last_progress_;
  const bool ends = options_.stall_shutdown_time > Duration::zero() && stuck >= options_.stall_shutdown_time;
  const Active& active = active_.front();
  if (!ends && (stuck_reported_ || stuck < patience_of(*active.set))) return;
  Inquiry inquiry;
  inquiry.purpose = ends ? Inquiry::Purpose::kStallEnds : Inquiry::Purpose::kStuck;
  inquiry.set = active.set->id;
  inquiry.executing = true;
  inquiry.headline = active.operations.front()->spec.name + " has made no progress for " +
                     std::to_string(in_seconds(stuck)) + " s, though all ranks take part in it. " +
                     name_of_rank(rank_) + " waits for other ranks.";
  Stall stall{
      .name = active.operations.front()->spec.name, .waiting = {}, .call_sites = {}, .missing = {}, .age = stuck};
  std::vector<int> peers;
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_ || !active.execution->waits_for(peer)) continue;
    peers.push_back(peer);
    if (const auto member = active.set->set_rank_of(peer)) stall.missing.push_back(*member);
  }
  stall.waiting.push_back(active.set->set_rank);
  stall.call_sites.push_back(active.operations.front()->request.call_site);
  inquiry.stalls.push_back(std::move(stall));
  stuck_reported_ = true;
  ask(std::move(inquiry), peers);
}

void Engine::ask(Inquiry inquiry, const std::vector<int>& ranks) {
  inquiry.until = std::chrono::steady_clock::now() + kInquiryTime;
  Message message;
  message.kind = MessageKind::kInquire;
  for (const int rank : ranks) {
    inquiry.answers[rank] = std::nullopt;
    if (rank == rank_) {
      inquirers_.push_back(rank_);
    } else if (!left_peers_[static_cast<size_t>(rank)]) {
      control_->send(rank, message);
    }
  }
  if (!inquirers_.empty() && !position_.requested()) position_.request(std::chrono::steady_clock::now());
  inquiry_ = std::move(inquiry);
}

// Of this rank, for those that asked.
void Engine::answer_inquirers(TimePoint now) {
  std::optional<PositionReport> report = position_.take(now);
  if (!report) return;
  const PositionReport operations = own_position();
  report->blocked = operations.blocked;
  report->operations = operations.operations;
  report->waits = operations.waits;
  report->held = operations.blocked && is_held(*report);
  Message message;
  message.kind = MessageKind::kPosition;
  message.position = std::move(*report);
  for (const int peer : std::exchange(inquirers_, {})) {
    if (peer == rank_) {
      note_position(rank_, message);
    } else {
      control_->send(peer, message);
    }
  }
}

void Engine::note_position(int peer, const Message& message) {
  if (!inquiry_) return;
  const auto asked = inquiry_->answers.find(peer);
  if (asked != inquiry_->answers.end()) asked->second = message.position;
}

void Engine::conclude_inquiry(TimePoint now) {
  const bool all = std::all_of(inquiry_->answers.begin(), inquiry_->answers.end(),
                               [](const auto& answer) { return answer.second.has_value(); });
  if (!all && now < inquiry_->until) return;
  Inquiry inquiry = std::move(*inquiry_);
  inquiry_.reset();
  const auto set = sets_.find(inquiry.set);
  if (set != sets_.end() && set->second->negotiator == nullptr && !inquiry.executing) {
    if (all) return;  // the coordinator reports itself
    const Duration age = inquiry.stalls.front().age;
    const TimePoint end = inquiry.until - kInquiryTime - age + options_.stall_shutdown_time;
    const bool ends = options_.stall_shutdown_time > Duration::zero();
    const bool is_first = inquiry.purpose == Inquiry::Purpose::kCoordinator;
    if (ends && now >= end) inquiry.purpose = Inquiry::Purpose::kStallEnds;
    report(inquiry);
    if (!ends || !is_first) return;
    inquiry.purpose = Inquiry::Purpose::kStallEnds;  // unless the coordinator answers until then
    inquiry.until = end;
    inquiry_ = std::move(inquiry);
    return;
  }
  if (inquiry.purpose == Inquiry::Purpose::kDeadlockEnds) {
    end_deadlock(std::move(inquiry));
    return;
  }
  const bool all_blocked = std::all_of(inquiry.answers.begin(), inquiry.answers.end(), [](const auto& answer) {
    return answer.second.has_value() && answer.second->blocked;
  });
  if (inquiry.purpose == Inquiry::Purpose::kDeadlock && !all_blocked) return;
  report(inquiry);
}

void Engine::report(const Inquiry& inquiry) {
  const auto found = sets_.find(inquiry.set);
  if (found == sets_.end()) return;
  const ProcessSet& set = *found->second;
  std::map<int, PositionReport> positions;
  std::vector<Stall> stalls = inquiry.stalls;
  if (inquiry.executing && !stuck_reported_) return;  // it goes on
  if (!inquiry.executing) {
    std::erase_if(stalls, [&](const Stall& stall) {
      return set.negotiator != nullptr ? !set.negotiator->is_waiting(stall.name) : !set.pending.contains(stall.name);
    });
    if (stalls.empty()) return;
  }
  for (const auto& [rank, answer] : inquiry.answers) {
    const std::optional<int> member = set.set_rank_of(rank);
    if (!member) continue;
    positions[*member] = answer ? *answer : silent_position(rank);
  }
  const std::string text = stall_report(inquiry.headline, stalls, positions, [&](int member) {
    return name_of_rank(set.members[static_cast<size_t>(member)]);
  });
  using Purpose = Inquiry::Purpose;
  if (inquiry.purpose == Purpose::kStallEnds || inquiry.purpose == Purpose::kDeadlockEnds)
    throw Error(ErrorKind::kStalled, text);
  if (inquiry.purpose == Inquiry::Purpose::kDeadlock) set.negotiator->mark_reported();
  options_.log(LogLevel::kWarning, text);
}

// Of a rank that did not answer: what the system tells of its process, if it is on this host.
PositionReport Engine::silent_position(int peer) const {
  PositionReport report;
  switch (process_state(transport_->pid_of(peer))) {
    case 'T':
    case 't':
      report.activity = "is stopped: somebody sent it SIGSTOP, or a debugger holds it";
      break;
    case 'D':
      report.activity = "is stuck in the system, as a process is that reads from a disk or server that does not answer";
      break;
    case 'Z':
    case 'X':
      report.activity = "is dead";
      break;
    case 0:
      report.activity = "does not answer: its process is stopped, or its host or the network does not work";
      break;
    default:
      report.activity = "does not answer though its process runs: its host is overloaded";
  }
  const std::string last = last_submitted_by(peer);
  if (!last.empty()) report.operations = "last submitted " + last;
  return report;
}

std::string Engine::last_submitted_by(int peer) const {
  for (const auto& [id, set] : sets_) {
    const std::optional<int> member = set->set_rank_of(peer);
    if (!member || set->negotiator == nullptr) continue;
    std::string last = set->negotiator->last_announced(*member, options_.clock->now());
    if (!last.empty()) return last;
  }
  return {};
}

// Not if anything is under way that may let a thread, or a callback, go on.
bool Engine::is_held(const PositionReport& report) const {
  if (report.busy || !active_.empty() || !in_hand_.empty() || !removals_.empty()) return false;
  std::set<uint64_t> waiting;
  for (const auto& [id, set] : sets_) {
    for (const auto& [name, operation] : set->pending) {
      if (operation->request.on_done) return false;
      waiting.insert(operation->waiter.load(std::memory_order_relaxed));
    }
  }
  waiting.erase(0);
  const std::lock_guard lock(queue_mutex_);
  return queue_.empty() && hvd::is_held(report.threads, waiting, submitters_);
}

PositionReport Engine::own_position() const {
  PositionReport report;
  std::string waits;
  const auto note = [&](const Operation& operation) {
    if (operation.done() || !operation.waited_long.load(std::memory_order_relaxed)) return;
    waits += (waits.empty() ? "" : ", ") + operation.spec.name;
    if (!operation.request.call_site.empty()) waits += " at " + operation.request.call_site;
  };
  for (const auto& [id, set] : sets_) {
    for (const auto& [name, operation] : set->pending) {
      note(*operation);
      if (operation->waiter.load(std::memory_order_relaxed) != 0) report.waits.push_back({.set = id, .name = name});
    }
  }
  report.blocked = !waits.empty();
  for (const Active& active : active_) {
    for (const auto& operation : active.operations) note(*operation);
  }
  if (!waits.empty()) {
    report.operations = "waits for " + waits;
    return report;
  }
  const std::lock_guard lock(queue_mutex_);
  if (last_submitted_.name.empty()) {
    report.operations = "has not submitted any operation yet";
    return report;
  }
  const Duration passed = options_.clock->now() - last_submitted_.time;
  report.operations = "last submitted " + last_submitted_.name +
                      (last_submitted_.call_site.empty() ? "" : " at " + last_submitted_.call_site) + ", " +
                      std::to_string(in_seconds(passed)) + " s ago";
  return report;
}

}  // namespace hvd
