#include "engine/driver/machine.h"

#include <algorithm>

namespace hvd {
namespace {

constexpr Duration kGoodbyeTime = std::chrono::seconds(2);
// How often to look whether an answer to "where are you?" is there, or a device has ended.
constexpr Duration kInquiryPeriod = std::chrono::milliseconds(20);

std::optional<AutotuneOptions> tuned_here(const MachineOptions& options, const JobInfo& job) {
  return job.rank == 0 && job.size > 1 ? options.autotune : std::nullopt;
}

}  // namespace

Machine::Machine(Neighbors neighbors, Backends backends, const MachineOptions& options)
    : with_(neighbors),
      completion_(with_.submission, with_.observer),
      tuning_(tuned_here(options, with_.job), with_.job.log, with_.counters),
      executions_(
          {with_.job, with_.transport, with_.control, with_.devices, with_.observer, completion_, with_.counters},
          std::move(backends), tuning_),
      agreement_({with_.job, with_.control, with_.submission, with_.devices, with_.observer, completion_, executions_,
                  tuning_, with_.counters},
                 options.agreement),
      watch_({with_.job, with_.transport, with_.control, with_.submission, agreement_, executions_, with_.position},
             options.watch) {}

bool Machine::pass(bool look_for_lost) {
  with_.counters.passes.fetch_add(1, std::memory_order_relaxed);
  const bool had_failed = failed_;
  try {
    return pass_or_throw(look_for_lost);
  } catch (const Error& error) {
    if (failed_ && with_.submission.is_closing()) closed_ = true;  // there is nobody left to say goodbye to
    fail(error, true);
  } catch (const std::exception& error) {
    fail(Error(ErrorKind::kInternal, with_.job.name_of_rank(with_.job.rank) + " failed: " + error.what()), true);
  }
  return !had_failed;  // what fails now fails in each pass, until the engine closes
}

bool Machine::pass_or_throw(bool look_for_lost) {
  if (!with_.transport.all_local()) with_.transport.notice();
  if (with_.transport.take_liveness_event()) look_for_lost = true;
  if (with_.submission.is_closing() && (failed_ || (with_.observer.has_ended() && executions_.last_have_ended()))) {
    leave();
    return false;
  }
  if (failed_) {
    executions_.look_for_ended_devices();
    with_.control.flush();
    return false;
  }
  bool progressed = take_submissions();
  progressed = receive_messages() || progressed;
  progressed = look_for_lost_peers(look_for_lost) || progressed;
  if (failed_) return true;
  progressed = agreement_.answer_all() || progressed;
  with_.observer.follow_commands();
  if (executions_.advance()) {
    progressed = true;
  } else if (const std::optional<int> peer = executions_.missing_peer()) {
    throw lost(*peer);
  }
  with_.control.flush();
  with_.transport.flush();
  if (with_.transport.cannot_wake()) throw closed_descriptors(with_.job);
  watch_.check();
  return progressed;
}

bool Machine::take_submissions() {
  Submission::Taken taken = with_.submission.take();
  const bool progressed = agreement_.take(taken.operations, std::move(taken.leaves));
  for (const auto& [operation, text] : taken.given_up) watch_.give_up(operation, text);
  return progressed || !taken.given_up.empty();
}

bool Machine::receive_messages() {
  return with_.control.receive([this](int peer, Message& message) { handle(peer, message); });
}

void Machine::handle(int peer, Message& message) {
  if (failed_) return;
  switch (message.kind) {
    case MessageKind::kAbort:
      // Passed on: this rank may be gone before the others hear of it, and its end must not look like the first cause.
      fail(Error(message.error_kind, message.text), true);
      return;
    case MessageKind::kBye:
      // A rank that left because another one had is not the cause, whichever goodbye is read first.
      with_.control.note_end(peer, message.cause.empty()
                                       ? with_.job.name_of_rank(peer) + " has shut Horovod down (" + message.text +
                                             "), so operations that need it cannot be done any more"
                                       : message.cause);
      with_.observer.peer_left(peer);
      agreement_.leave(peer);
      return;
    case MessageKind::kInquire:
      watch_.note_question(peer, message);
      return;
    case MessageKind::kPosition:
      watch_.note_position(peer, message);
      return;
    case MessageKind::kGiveUp:
      watch_.note_give_up(peer, message);
      return;
    case MessageKind::kAnnounce:
    case MessageKind::kRespond:
    case MessageKind::kResend:
    case MessageKind::kLeave:
    case MessageKind::kDissolve:
      agreement_.handle(peer, message);
      return;
    default:
      with_.observer.handle(peer, message);
  }
}

bool Machine::look_for_lost_peers(bool all) {
  const std::vector<int> ended = with_.transport.take_ended(all);
  if (ended.empty()) return false;
  receive_messages();  // a goodbye, or the first cause, came before the end of the connection
  for (const int peer : ended) {
    if (failed_) return true;
    if (with_.control.end_of(peer)) continue;
    with_.control.forget(peer);
    throw lost(peer);
  }
  return true;
}

Error Machine::lost(int peer) const {
  const std::string last = agreement_.last_submitted_by(peer);
  return {ErrorKind::kPeerLost, with_.job.name_of_rank(peer) +
                                    " was lost: its process died or its connection broke. The output of that rank may "
                                    "tell why." +
                                    (last.empty() ? "" : " It last submitted " + last + ".")};
}

void Machine::fail(const Error& error, bool tell_peers) {
  if (failed_) return;
  failed_ = true;
  if (tell_peers && error.kind() == ErrorKind::kShutDown) completion_.note_cause(error.what());
  completion_.note_failure();
  const std::vector<std::shared_ptr<Operation>> queued = with_.submission.fail(error);
  executions_.fail(error);
  agreement_.fail(error);
  for (const auto& operation : queued) completion_.fail(*operation, error);
  with_.observer.fail(error);
  if (!tell_peers) return;
  Message message;
  message.kind = MessageKind::kAbort;
  message.error_kind = error.kind();
  message.text = error.what();
  send_to_all(message);
}

void Machine::send_to_all(const Message& message) {
  for (int peer = 0; peer < with_.job.size; ++peer) {
    if (with_.transport.has(peer)) with_.control.send(peer, message);
  }
}

// Says goodbye and fails what is pending. The last thing that the engine does.
void Machine::leave() {
  const std::string reason = with_.submission.closing().value_or("");
  const bool data_matter = !failed_;  // peers that failed too do not read them any more
  fail(Error(ErrorKind::kShutDown, "Horovod has been shut down on this rank (" + reason + ")"), false);
  Message message;
  message.kind = MessageKind::kBye;
  message.text = reason;
  message.cause = completion_.cause();
  send_to_all(message);
  const TimePoint until = std::chrono::steady_clock::now() + kGoodbyeTime;
  const Doorbell& doorbell = with_.transport.doorbell();
  while (true) {
    const uint32_t seen = doorbell.events();
    const bool data_sent = with_.transport.flush();
    const bool sent = with_.control.flush() && (data_sent || !data_matter);
    if (sent && with_.transport.finish_sending(data_matter)) break;
    const Duration left = until - std::chrono::steady_clock::now();
    if (left <= Duration::zero()) break;
    with_.transport.wake_away();
    if (doorbell.arm(Sleep::kEventFd, seen)) with_.transport.notice(left);
    doorbell.disarm();
  }
  executions_.look_for_ended_devices(true);
  closed_ = true;
}

bool Machine::expects_events() {
  const bool sent = with_.control.flush() && with_.transport.flush();
  return !sent || failed_ || closed_ || is_executing() || agreement_.has_pending();
}

bool Machine::has_work(bool checks) const {
  return executions_.has_work() || (checks && until_next_check()) || agreement_.has_responses() ||
         agreement_.may_leave();
}

std::optional<Duration> Machine::until_next_check() const {
  if (failed_) return executions_.has_left_to_devices() ? std::optional(kInquiryPeriod) : std::nullopt;
  if (watch_.inquires() || executions_.awaits_last()) return kInquiryPeriod;
  const std::optional<Duration> flush = with_.observer.until_flush();
  const std::optional<Duration> check = watch_.until_check();
  return flush && check ? std::min(*flush, *check) : (flush ? flush : check);
}

}  // namespace hvd
