// Lost peers, and the end of an engine.
#include "engine/engine.h"

namespace hvd {
namespace {

constexpr Duration kGoodbyeTime = std::chrono::seconds(2);

}  // namespace

bool Engine::look_for_lost_peers() {
  const std::vector<int> ended = transport_->take_ended(look_for_lost_.exchange(false));
  if (ended.empty()) return false;
  receive_messages();  // a goodbye, or the first cause, came before the end of the connection
  for (const int peer : ended) {
    if (failed_) return true;
    if (left_peers_[static_cast<size_t>(peer)]) continue;
    control_->forget(peer);
    throw lost(peer);
  }
  return true;
}

Error Engine::lost(int peer) const {
  const std::string last = last_submitted_by(peer);
  return {ErrorKind::kPeerLost, name_of_rank(peer) +
                                    " was lost: its process died or its connection broke. The output of that rank may "
                                    "tell why." +
                                    (last.empty() ? "" : " It last submitted " + last + ".")};
}

// What this rank tells at its own end, which follows from this one.
void Engine::note_cause(const Operation& operation, const Error& error) {
  if (failed_ || error.kind() != ErrorKind::kShutDown || !cause_.empty()) return;
  const std::string text = error.what();
  const std::string prefix = operation.spec.name + " failed: ";
  cause_ = text.starts_with(prefix) ? text.substr(prefix.size()) : text;
}

void Engine::fail(const Error& error, bool tell_peers) {
  if (failed_) return;
  failed_ = true;
  if (tell_peers && cause_.empty() && error.kind() == ErrorKind::kShutDown) cause_ = error.what();
  std::deque<std::shared_ptr<Operation>> queued;
  {
    const std::lock_guard lock(queue_mutex_);
    failure_ = error;
    queued.swap(queue_);
  }
  detach_regions();
  if (error.kind() != ErrorKind::kShutDown) backend_->give_up(error.what());
  give_up_on_devices(error);
  const auto fail_one = [&](Operation& operation) {
    complete(operation, Error(error.kind(), operation.spec.name + " failed: " + error.what()));
  };
  for (Active& active : active_) {
    active.execution.reset();  // callers may free their memory as soon as they know
    for (const auto& operation : active.operations) fail_one(*operation);
  }
  active_.clear();
  for (const auto& operation : in_hand_) fail_one(*operation);
  in_hand_.clear();
  for (const auto& operation : removals_) fail_one(*operation);
  removals_.clear();
  for (const auto& [id, set] : sets_) {
    for (const auto& [name, operation] : set->pending) fail_one(*operation);
    set->pending.clear();
  }
  for (const auto& operation : queued) fail_one(*operation);
  give_up_timeline(error);
  if (!tell_peers) return;
  Message message;
  message.kind = MessageKind::kAbort;
  message.error_kind = error.kind();
  message.text = error.what();
  for (int peer = 0; peer < size_; ++peer) {
    if (transport_->has(peer)) control_->send(peer, message);
  }
}

// Says goodbye and fails what is pending. The last thing that the engine does.
void Engine::leave() {
  std::string reason;
  {
    const std::lock_guard lock(queue_mutex_);
    reason = *closing_;
  }
  const bool data_matter = !failed_;  // peers that failed too do not read them any more
  fail(Error(ErrorKind::kShutDown, "Horovod has been shut down on this rank (" + reason + ")"), false);
  Message message;
  message.kind = MessageKind::kBye;
  message.text = reason;
  message.cause = cause_;
  for (int peer = 0; peer < size_; ++peer) {
    if (transport_->has(peer)) control_->send(peer, message);
  }
  const TimePoint until = std::chrono::steady_clock::now() + kGoodbyeTime;
  const Doorbell& doorbell = transport_->doorbell();
  while (true) {
    const uint32_t seen = doorbell.events();
    const bool data_sent = transport_->flush();
    const bool sent = control_->flush() && (data_sent || !data_matter);
    if (sent && transport_->finish_sending(data_matter)) break;
    const Duration left = until - std::chrono::steady_clock::now();
    if (left <= Duration::zero()) break;
    if (doorbell.arm(Sleep::kEventFd, seen)) transport_->notice(left);
    doorbell.disarm();
  }
  look_for_ended_devices();
  left_to_devices_.clear();
  closed_ = true;
}

}  // namespace hvd
