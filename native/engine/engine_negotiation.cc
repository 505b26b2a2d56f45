#include <algorithm>
#include <cstring>

#include "engine/engine.h"

namespace hvd {
namespace {

// Batches in flight for a set: one on its way while the next starts. What becomes ready meanwhile is fused.
constexpr size_t kMostBatchesInFlight = 2;

}  // namespace

// Batches of a higher priority, and small ones, only have to wait for their like.
Room Engine::room_of(const ProcessSet& set) const {
  std::vector<int32_t> priorities;  // falling, as active_ is
  size_t num_small = 0;
  for (const Active& active : active_) {
    if (active.set != &set || active.handed_over) continue;  // a stream takes as many as there are
    priorities.push_back(active.priority);
    if (active.bytes <= kSmallBatchBytes) ++num_small;
  }
  Room room;
  room.any = priorities.size() < kMostBatchesInFlight;
  room.small = num_small < kMostBatchesInFlight;
  if (!room.any) room.priority = priorities[kMostBatchesInFlight - 1];
  return room;
}

bool Engine::receive_messages() {
  return control_->receive([this](int peer, const Message& message) { handle(peer, message); });
}

void Engine::handle(int peer, const Message& message) {
  if (failed_) return;
  if (message.kind == MessageKind::kAbort) {
    // Passed on: this rank may be gone before the others hear of it, and its end must not look like the first cause.
    fail(Error(message.error_kind, message.text), true);
    return;
  }
  if (message.kind == MessageKind::kBye) {
    // A rank that left because another one had is not the cause, whichever goodbye is read first.
    peer_left(peer, message.cause.empty() ? name_of_rank(peer) + " has shut Horovod down (" + message.text +
                                                "), so operations that need it cannot be done any more"
                                          : message.cause);
    return;
  }
  if (message.kind == MessageKind::kInquire) {
    inquirers_.push_back(peer);
    if (!position_.requested()) position_.request(std::chrono::steady_clock::now());
    return;
  }
  if (message.kind == MessageKind::kPosition) {
    note_position(peer, message);
    return;
  }
  if (message.kind >= MessageKind::kTimelineStart) {
    timeline_->handle(peer, message, std::chrono::steady_clock::now());
    return;
  }
  if (message.set >= next_set_id_) {  // the peer has heard of the new set before this rank
    early_messages_[message.set].emplace_back(peer, message);
    return;
  }
  ProcessSet& set = set_of(message.set);
  if (message.kind == MessageKind::kAnnounce) {
    const std::optional<int> member = set.set_rank_of(peer);
    if (!member || set.negotiator == nullptr) {
      throw Error(ErrorKind::kInternal, name_of_rank(peer) + " announced an operation to the wrong rank");
    }
    for (const Announcement& announcement : message.announcements) announce(set, *member, announcement);
    return;
  }
  if (peer != set.coordinator()) {
    throw Error(ErrorKind::kInternal, name_of_rank(peer) + " answers for a process set that it does not coordinate");
  }
  if (message.kind == MessageKind::kResend) announce_again(set, message.digest);
  for (const Response& response : message.responses) apply(set, response);
}

void Engine::send_announcements(ProcessSet& set, std::vector<Announcement> announcements) {
  if (set.is_coordinator()) {
    for (Announcement& announcement : announcements) announce(set, set.set_rank, std::move(announcement));
    return;
  }
  Message message;
  message.kind = MessageKind::kAnnounce;
  message.set = set.id;
  message.announcements = std::move(announcements);
  control_->send(set.coordinator(), message);
}

// On the coordinator: a member is ready for a name.
void Engine::announce(ProcessSet& set, int member, Announcement announcement) {
  const uint64_t digest = announcement.digest;
  record_announcement(set.members[static_cast<size_t>(member)], announcement);
  if (set.negotiator->announce(member, std::move(announcement), options_.clock->now())) return;
  if (member == set.set_rank) {
    announce_again(set, digest);
    return;
  }
  Message message;
  message.kind = MessageKind::kResend;
  message.set = set.id;
  message.digest = digest;
  control_->send(set.members[static_cast<size_t>(member)], message);
}

// The coordinator gave the number to another name meanwhile. That name may be pending here under the same number, so
// the digest has to tell which one is meant.
void Engine::announce_again(ProcessSet& set, uint64_t digest) {
  for (const auto& [name, operation] : set.pending) {
    if (!operation->state.announced_id || operation->state.digest != digest) continue;
    Announcement announcement = set.announcement_of(*operation);
    announcement.full = true;
    announcement.spec = operation->spec;
    operation->state.announced_id.reset();
    send_announcements(set, {std::move(announcement)});
    return;
  }
  throw Error(ErrorKind::kInternal, "the coordinator asks again for an operation that is not pending");
}

// An answer may add or remove a process set.
bool Engine::answer_all() {
  bool any = false;
  for (auto entry = sets_.begin(); entry != sets_.end();) {
    const uint32_t id = entry->first;
    any = answer(*entry->second) || any;
    entry = sets_.upper_bound(id);
  }
  return any;
}

// On the coordinator: tells all members, this rank last, what has been agreed.
bool Engine::answer(ProcessSet& set) {
  if (set.negotiator == nullptr || failed_ || !set.negotiator->has_responses()) return false;
  std::vector<Response> responses = set.negotiator->take_responses(room_of(set));
  if (responses.empty()) return false;
  if (timeline_->recorder().active()) timeline_->recorder().mark("", "CYCLE_START", std::chrono::steady_clock::now());
  if (set.size() > 1) {
    Message message;
    message.kind = MessageKind::kRespond;
    message.set = set.id;
    message.responses = responses;
    const Bytes bytes = message.encode();
    for (const int member : set.members) {
      if (member != rank_) control_->send(member, bytes);
    }
  }
  for (const Response& response : responses) apply(set, response);
  return true;
}

// Pending no more, and not yet executed: should its answer turn out to be damaged, it fails with everything else.
std::shared_ptr<Operation> Engine::take(ProcessSet& set, const NameRef& ref) {
  in_hand_.push_back(set.take(ref));
  return in_hand_.back();
}

void Engine::apply(ProcessSet& set, const Response& response) {
  const size_t num_before = in_hand_.size();
  switch (response.kind) {
    case Response::Kind::kExecute:
      execute(set, response);
      break;
    case Response::Kind::kError: {
      // It goes to all members, though one may not have submitted the name yet.
      if (!set.pending.contains(response.names.at(0).name)) break;
      const std::shared_ptr<Operation> operation = take(set, response.names.at(0));
      record_answer(*operation, true);
      finish(*operation, Error(response.error_kind, response.message));
      break;
    }
    case Response::Kind::kResult:
      apply_result(set, response);
      break;
  }
  in_hand_.resize(std::min(num_before, in_hand_.size()));
}

void Engine::apply_result(ProcessSet& set, const Response& response) {
  if (response.lacks(set.set_rank)) {
    [[maybe_unused]] const auto nobodys = set.stand_in(response.names.at(0));  // learns the number of the name
    return;
  }
  const std::shared_ptr<Operation> operation = take(set, response.names.at(0));
  const OpKind kind = operation->spec.kind;
  if (kind != OpKind::kAllreduce && traits_of(kind).moves_data) {
    throw Error(ErrorKind::kInternal,
                "the coordinator sent a result of " + operation->spec.name + ", which the members have to execute");
  }
  if (operation->spec.on_gpu && !response.payload.empty()) {
    throw Error(ErrorKind::kInternal,
                "the coordinator sent a result of " + operation->spec.name + ", whose memory the host does not touch");
  }
  record_answer(*operation, false);
  note_step(set, *operation);
  size_t offset = 0;
  for (const Buffer& output : operation->request.outputs) {
    const size_t bytes = output.bytes();
    if (offset + bytes > response.payload.size()) {
      throw Error(ErrorKind::kInternal, "the coordinator sent a result that is too short");
    }
    if (bytes > 0) std::memcpy(output.data, response.payload.data() + offset, bytes);
    offset += bytes;
  }
  agree_on(set, *operation, response);
  finish(*operation);
}

void Engine::peer_left(int peer, const std::string& end) {
  left_peers_[static_cast<size_t>(peer)] = end;
  control_->forget(peer);
  timeline_->peer_left(peer);
  for (const auto& [id, set] : sets_) leave_process_set(*set, peer, end);
}

void Engine::leave_process_set(ProcessSet& set, int peer, const std::string& end) {
  const std::optional<int> member = set.set_rank_of(peer);
  if (!member) return;
  if (set.negotiator != nullptr) set.negotiator->member_left(end);
  if (set.coordinator() != peer) return;
  set.left = end;
  for (const auto& [name, operation] : set.pending) {
    finish(*operation, Error(ErrorKind::kShutDown, name + " failed: " + *set.left));
  }
  set.pending.clear();
}

}  // namespace hvd
