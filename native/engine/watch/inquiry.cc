// Other ranks are asked where they are, and the answers are told.
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <set>

#include "engine/watch/stall_report.h"
#include "engine/watch/watch.h"

namespace hvd {
namespace {

constexpr Duration kInquiryTime = std::chrono::milliseconds(1500);
// A kernel waits for other ranks if it takes longer.
constexpr Duration kSlowKernel = std::chrono::milliseconds(200);

// The state letter of /proc/<pid>/stat (proc(5)), or 0.
char process_state(int pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  if (pid <= 0 || !std::getline(file, text)) return 0;
  const size_t end = text.rfind(')');  // of the command, which may hold anything
  return end != std::string::npos && end + 2 < text.size() ? text[end + 2] : char{0};
}

}  // namespace

void Watch::ask(Inquiry inquiry, const std::vector<int>& ranks) {
  inquiry.started = std::chrono::steady_clock::now();
  Questions questions;
  for (const int rank : ranks) questions[rank] = {};
  ask_on(std::move(inquiry), questions);
}

void Watch::ask_on(Inquiry inquiry, const Questions& questions) {
  inquiry.until = std::chrono::steady_clock::now() + kInquiryTime;
  Message message;
  message.kind = MessageKind::kInquire;
  for (const auto& [rank, waits] : questions) {
    inquiry.answers.try_emplace(rank, std::nullopt);
    inquiry.awaited.insert(rank);
    message.waits = waits;
    if (rank == with_.job.rank) {
      inquirers_.push_back({with_.job.rank, waits});
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
  report->held = is_held(*report);
  describe_operations(*report);
  Message message;
  message.kind = MessageKind::kPosition;
  message.position = std::move(*report);
  for (const Inquirer& inquirer : std::exchange(inquirers_, {})) {
    message.position.unready = unready_of(inquirer.waits);
    if (inquirer.rank == with_.job.rank) {
      note_position(with_.job.rank, message);
    } else {
      with_.control.send(inquirer.rank, message);
    }
  }
}

void Watch::note_question(int peer, const Message& message) {
  inquirers_.push_back({peer, message.waits});
  if (!with_.position.requested()) with_.position.request(std::chrono::steady_clock::now());
}

// The first position counts: what is told of operations has to be later than all positions (search.cc).
void Watch::note_position(int peer, const Message& message) {
  const auto exist = [&](const std::vector<int32_t>& ranks) {
    return ranks.size() <= static_cast<size_t>(with_.job.size) &&
           std::all_of(ranks.begin(), ranks.end(), [&](int rank) { return rank >= 0 && rank < with_.job.size; });
  };
  for (const Unready& unready : message.position.unready) {
    if (exist(unready.missing) && exist(unready.waiting)) continue;
    throw Error(ErrorKind::kInternal, with_.job.name_of_rank(peer) + " says that " + unready.wait.name +
                                          " lacks ranks that do not exist: it runs another version");
  }
  if (!inquiry_ || inquiry_->awaited.erase(peer) == 0) return;
  std::optional<PositionReport>& answer = inquiry_->answers[peer];
  if (!answer) answer = message.position;
  for (const Unready& unready : message.position.unready) inquiry_->told[unready.wait] = unready;
}

void Watch::conclude(TimePoint now) {
  const bool all = inquiry_->awaited.empty();
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
    if (all) go_on_with_deadlock(std::move(inquiry));
    return;
  }
  const bool all_blocked = std::all_of(inquiry.answers.begin(), inquiry.answers.end(), [](const auto& answer) {
    return answer.second.has_value() && answer.second->blocked;
  });
  if (inquiry.purpose == Inquiry::Purpose::kDeadlock && !all_blocked) return;
  if (inquiry.purpose == Inquiry::Purpose::kStall && all_blocked) {
    inquiry.purpose = Inquiry::Purpose::kDeadlock;
    inquiry.headline = kDeadlockHeadline;
  }
  report(inquiry);
}

void Watch::report(const Inquiry& inquiry) const {
  const ProcessSet* found = find_set(inquiry.set);
  if (found == nullptr) return;
  const ProcessSet& set = *found;
  std::vector<Stall> stalls = inquiry.stalls;
  if (inquiry.executing && !stuck_is_reported()) return;  // it goes on
  if (!inquiry.executing) {
    std::erase_if(stalls, [&](const Stall& stall) {
      return set.negotiator != nullptr ? !set.negotiator->is_waiting(stall.name) : !set.pending.contains(stall.name);
    });
    if (stalls.empty()) return;
  }
  for (Stall& stall : stalls) {
    for (int& member : stall.waiting) member = set.members[static_cast<size_t>(member)];
    for (int& member : stall.missing) member = set.members[static_cast<size_t>(member)];
  }
  for (const auto& [wait, unready] : inquiry.told) {
    stalls.push_back({.name = wait.name,
                      .waiting = unready.waiting,
                      .call_sites = std::vector<std::string>(unready.waiting.size()),
                      .missing = unready.missing,
                      .age = unready.age});
  }
  std::map<int, PositionReport> positions;
  for (const auto& [rank, answer] : inquiry.answers) positions[rank] = answer ? *answer : silent_position(rank);
  const std::string text =
      stall_report(inquiry.headline, stalls, positions, [&](int rank) { return with_.job.name_of_rank(rank); });
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
  std::optional<std::set<uint64_t>> submitters = with_.submission.submitters_if_empty();
  if (!submitters) return false;
  Callers callers;
  callers.submitters = *std::move(submitters);
  std::set<pid_t> own = {gettid(), with_.position.watcher()};
  const auto note = [&](const Operation& operation) {
    if (const uint64_t waiter = operation.waiter.load(std::memory_order_relaxed); waiter != 0) {
      callers.waiting.insert(waiter);
      own.insert(operation.slow_waiter.load(std::memory_order_relaxed));
    }
    callers.kernels = callers.kernels || operation.is_followed();
  };
  for (const auto& [id, set] : with_.agreement.sets()) {
    for (const auto& [name, operation] : set->pending) note(*operation);
  }
  for (const auto& removal : with_.agreement.removals()) note(*removal);
  return hvd::is_held(report.threads, callers, &sleeps_of_threads, own);
}

// A kernel waits though no thread may wait for it. The removal of a process set waits for all that is pending in it.
std::vector<Wait> Watch::waits() const {
  std::set<uint32_t> removed;
  for (const auto& removal : with_.agreement.removals()) {
    if (removal->waiter.load(std::memory_order_relaxed) != 0) {
      removed.insert(static_cast<uint32_t>(removal->spec.ranks.front()));
    }
  }
  std::vector<Wait> waits;
  for (const auto& [id, set] : with_.agreement.sets()) {
    for (const auto& [name, operation] : set->pending) {
      const bool waited = operation->waiter.load(std::memory_order_relaxed) != 0 || operation->is_followed();
      if (waited || removed.contains(id)) waits.push_back({.set = id, .name = name});
    }
  }
  return waits;
}

// What the rank waits for, or did last. A kernel waits if the process does not compute meanwhile.
void Watch::describe_operations(PositionReport& report) const {
  std::string waiting;
  const TimePoint now = with_.job.clock->now();
  const auto note = [&](const Operation& operation) {
    const bool is_kernel = !report.busy && operation.is_followed() && now - operation.state.submitted >= kSlowKernel;
    if (operation.done() || !(operation.waited_long.load(std::memory_order_relaxed) || is_kernel)) return;
    waiting += (waiting.empty() ? "" : ", ") + operation.spec.name;
    if (!operation.request.call_site.empty()) waiting += " at " + operation.request.call_site;
  };
  for (const auto& [id, set] : with_.agreement.sets()) {
    for (const auto& [name, operation] : set->pending) note(*operation);
  }
  report.waits = waits();
  report.blocked = !waiting.empty();
  report.held = report.held && report.blocked;
  for (const Executions::Active& active : with_.executions.active()) {
    for (const auto& operation : active.operations) note(*operation);
  }
  if (!waiting.empty()) {
    report.operations = "waits for " + waiting;
    return;
  }
  const Submission::Last last = with_.submission.last();
  if (last.name.empty()) {
    report.operations = "has not submitted any operation yet";
    return;
  }
  const Duration passed = now - last.time;
  report.operations = "last submitted " + last.name + (last.call_site.empty() ? "" : " at " + last.call_site) + ", " +
                      std::to_string(in_seconds(passed)) + " s ago";
}

}  // namespace hvd
