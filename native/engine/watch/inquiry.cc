// Other ranks are asked where they are, and the answers are told.
#include <algorithm>
#include <fstream>
#include <set>

#include "engine/watch/deadlock.h"
#include "engine/watch/stall_report.h"
#include "engine/watch/watch.h"

namespace hvd {
namespace {

constexpr Duration kInquiryTime = std::chrono::milliseconds(1500);

// The state letter of /proc/<pid>/stat (proc(5)), or 0.
char process_state(int pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  if (pid <= 0 || !std::getline(file, text)) return 0;
  const size_t end = text.rfind(')');  // of the command, which may hold anything
  return end != std::string::npos && end + 2 < text.size() ? text[end + 2] : char{0};
}

}  // namespace

// What the ranks told was true at different moments, but who is held stays so while the names that hold it are not
// ready: those that are old enough now were not in between.
void Watch::end_deadlock(Inquiry inquiry) {
  const ProcessSet* found = find_set(inquiry.set);
  if (found == nullptr || found->negotiator == nullptr) return;
  const ProcessSet& set = *found;
  inquiry.stalls = set.negotiator->stalls(with_.job.clock->now());
  std::map<int, PositionReport> positions;
  for (const auto& [rank, answer] : inquiry.answers) {
    const std::optional<int> member = set.set_rank_of(rank);
    if (member && answer) positions[*member] = *answer;
  }
  const Duration age = std::max<Duration>(options_.deadlock_timeout, kInquiryTime);
  if (is_deadlock(set.id, inquiry.stalls, positions, age)) report(inquiry);
}

void Watch::ask(Inquiry inquiry, const std::vector<int>& ranks) {
  inquiry.until = std::chrono::steady_clock::now() + kInquiryTime;
  Message message;
  message.kind = MessageKind::kInquire;
  for (const int rank : ranks) {
    inquiry.answers[rank] = std::nullopt;
    if (rank == with_.job.rank) {
      inquirers_.push_back(with_.job.rank);
    } else if (!with_.control.end_of(rank)) {
      with_.control.send(rank, message);
    }
  }
  if (!inquirers_.empty() && !with_.position.requested()) with_.position.request(std::chrono::steady_clock::now());
  inquiry_ = std::move(inquiry);
}

// Of this rank, for those that asked.
void Watch::answer_inquirers(TimePoint now) {
  std::optional<PositionReport> report = with_.position.take(now);
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
    if (peer == with_.job.rank) {
      note_position(with_.job.rank, message);
    } else {
      with_.control.send(peer, message);
    }
  }
}

void Watch::note_question(int peer) {
  inquirers_.push_back(peer);
  if (!with_.position.requested()) with_.position.request(std::chrono::steady_clock::now());
}

void Watch::note_position(int peer, const Message& message) {
  if (!inquiry_) return;
  const auto asked = inquiry_->answers.find(peer);
  if (asked != inquiry_->answers.end()) asked->second = message.position;
}

void Watch::conclude(TimePoint now) {
  const bool all = std::all_of(inquiry_->answers.begin(), inquiry_->answers.end(),
                               [](const auto& answer) { return answer.second.has_value(); });
  if (!all && now < inquiry_->until) return;
  Inquiry inquiry = std::move(*inquiry_);
  inquiry_.reset();
  const ProcessSet* set = find_set(inquiry.set);
  if (set != nullptr && set->negotiator == nullptr && !inquiry.executing) {
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

void Watch::report(const Inquiry& inquiry) const {
  const ProcessSet* found = find_set(inquiry.set);
  if (found == nullptr) return;
  const ProcessSet& set = *found;
  std::map<int, PositionReport> positions;
  std::vector<Stall> stalls = inquiry.stalls;
  if (inquiry.executing && !stuck_is_reported()) return;  // it goes on
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
    return with_.job.name_of_rank(set.members[static_cast<size_t>(member)]);
  });
  using Purpose = Inquiry::Purpose;
  if (inquiry.purpose == Purpose::kStallEnds || inquiry.purpose == Purpose::kDeadlockEnds)
    throw Error(ErrorKind::kStalled, text);
  if (inquiry.purpose == Inquiry::Purpose::kDeadlock) set.negotiator->mark_reported();
  with_.job.log(LogLevel::kWarning, text);
}

// Of a rank that did not answer: what the system tells of its process, if it is on this host.
PositionReport Watch::silent_position(int peer) const {
  PositionReport report;
  switch (process_state(with_.transport.pid_of(peer))) {
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
  const std::string last = with_.agreement.last_submitted_by(peer);
  if (!last.empty()) report.operations = "last submitted " + last;
  return report;
}

// Not if anything is under way that may let a thread, or a callback, go on.
bool Watch::is_held(const PositionReport& report) const {
  if (report.busy || !with_.executions.active().empty() || with_.agreement.is_between()) return false;
  std::set<uint64_t> waiting;
  for (const auto& [id, set] : with_.agreement.sets()) {
    for (const auto& [name, operation] : set->pending) {
      if (operation->request.on_done) return false;
      waiting.insert(operation->waiter.load(std::memory_order_relaxed));
    }
  }
  waiting.erase(0);
  const std::optional<std::set<uint64_t>> submitters = with_.submission.submitters_if_empty();
  return submitters && hvd::is_held(report.threads, waiting, *submitters);
}

PositionReport Watch::own_position() const {
  PositionReport report;
  std::string waits;
  const auto note = [&](const Operation& operation) {
    if (operation.done() || !operation.waited_long.load(std::memory_order_relaxed)) return;
    waits += (waits.empty() ? "" : ", ") + operation.spec.name;
    if (!operation.request.call_site.empty()) waits += " at " + operation.request.call_site;
  };
  for (const auto& [id, set] : with_.agreement.sets()) {
    for (const auto& [name, operation] : set->pending) {
      note(*operation);
      if (operation->waiter.load(std::memory_order_relaxed) != 0) report.waits.push_back({.set = id, .name = name});
    }
  }
  report.blocked = !waits.empty();
  for (const Executions::Active& active : with_.executions.active()) {
    for (const auto& operation : active.operations) note(*operation);
  }
  if (!waits.empty()) {
    report.operations = "waits for " + waits;
    return report;
  }
  const Submission::Last last = with_.submission.last();
  if (last.name.empty()) {
    report.operations = "has not submitted any operation yet";
    return report;
  }
  const Duration passed = with_.job.clock->now() - last.time;
  report.operations = "last submitted " + last.name + (last.call_site.empty() ? "" : " at " + last.call_site) + ", " +
                      std::to_string(in_seconds(passed)) + " s ago";
  return report;
}

}  // namespace hvd
