#include "engine/messages/control.h"

#include <algorithm>
#include <cstring>

namespace hvd {
namespace {

constexpr uint32_t kLastFragment = 0;
constexpr uint32_t kMoreFollows = 1;
constexpr size_t kMostMessageBytes = size_t{64} << 20;
constexpr size_t kLeastWaitBytes = 2 * sizeof(uint32_t);
constexpr size_t kLeastUnreadyBytes = kLeastWaitBytes + sizeof(int64_t) + 2 * sizeof(uint32_t);

void write(const Wait& wait, WireWriter& out) {
  out.put(wait.set);
  out.put_string(wait.name);
}

Wait read_wait(WireReader& in) {
  Wait wait;
  wait.set = in.get<uint32_t>();
  wait.name = in.get_string();
  return wait;
}

void write(const std::vector<Wait>& waits, WireWriter& out) {
  out.put(static_cast<uint32_t>(waits.size()));
  for (const Wait& wait : waits) write(wait, out);
}

std::vector<Wait> read_waits(WireReader& in) {
  std::vector<Wait> waits(in.get_count(kLeastWaitBytes));
  for (Wait& wait : waits) wait = read_wait(in);
  return waits;
}

void write(const PositionReport& position, WireWriter& out) {
  out.put(static_cast<uint8_t>(position.blocked));
  out.put(static_cast<uint8_t>(position.held));
  write(position.waits, out);
  out.put(static_cast<uint32_t>(position.unready.size()));
  for (const Unready& unready : position.unready) {
    write(unready.wait, out);
    out.put(static_cast<int64_t>(unready.age.count()));
    out.put_list(unready.waiting);
    out.put_list(unready.missing);
  }
  out.put_string(position.operations);
  out.put_string(position.activity);
  out.put_string(position.stacks);
}

PositionReport read_position(WireReader& in) {
  PositionReport position;
  position.blocked = in.get<uint8_t>() != 0;
  position.held = in.get<uint8_t>() != 0;
  position.waits = read_waits(in);
  position.unready.resize(in.get_count(kLeastUnreadyBytes));
  for (Unready& unready : position.unready) {
    unready.wait = read_wait(in);
    unready.age = Duration(in.get<int64_t>());
    unready.waiting = in.get_list<int32_t>();
    unready.missing = in.get_list<int32_t>();
  }
  position.operations = in.get_string();
  position.activity = in.get_string();
  position.stacks = in.get_string();
  return position;
}

}  // namespace

Bytes Message::encode() const {
  WireWriter out;
  out.put(static_cast<uint8_t>(kind));
  out.put(set);
  switch (kind) {
    case MessageKind::kAnnounce:
      out.put(static_cast<uint32_t>(announcements.size()));
      for (const Announcement& announcement : announcements) announcement.write(out);
      break;
    case MessageKind::kRespond:
      out.put(static_cast<uint32_t>(responses.size()));
      for (const Response& response : responses) response.write(out);
      break;
    case MessageKind::kResend:
      out.put(digest);
      break;
    case MessageKind::kBye:
    case MessageKind::kAbort:
      out.put(static_cast<uint8_t>(error_kind));
      out.put_string(text);
      out.put_string(cause);
      break;
    case MessageKind::kLeave:
      out.put_string(text);
      break;
    case MessageKind::kDissolve:
      break;
    case MessageKind::kGiveUp:
      out.put_string(text);
      write(waits, out);
      break;
    case MessageKind::kInquire:
      write(waits, out);
      break;
    case MessageKind::kPosition:
      write(position, out);
      break;
    case MessageKind::kTimelineChunk:
      out.put_bytes(payload);
      break;
    case MessageKind::kTimelineStart:
    case MessageKind::kTimelineStop:
    case MessageKind::kTimelineEnd:
    case MessageKind::kTimeQuestion:
    case MessageKind::kTimeAnswer:
      out.put(number);
      out.put(peer_time);
      break;
  }
  return out.take();
}

Message Message::decode(std::span<const std::byte> bytes) {
  WireReader in(bytes);
  Message message;
  const auto kind = in.get<uint8_t>();
  if (kind > static_cast<uint8_t>(MessageKind::kTimeAnswer)) {
    throw Error(ErrorKind::kInternal, "a control message is of an unknown kind: the peer runs another version");
  }
  message.kind = static_cast<MessageKind>(kind);
  message.set = in.get<uint32_t>();
  switch (message.kind) {
    case MessageKind::kAnnounce:
      message.announcements.resize(in.get_count(Announcement::kLeastBytes));
      for (Announcement& announcement : message.announcements) announcement = Announcement::read(in);
      break;
    case MessageKind::kRespond:
      message.responses.resize(in.get_count(Response::kLeastBytes));
      for (Response& response : message.responses) response = Response::read(in);
      break;
    case MessageKind::kResend:
      message.digest = in.get<uint64_t>();
      break;
    case MessageKind::kBye:
    case MessageKind::kAbort:
      message.error_kind =
          static_cast<ErrorKind>(std::min(in.get<uint8_t>(), static_cast<uint8_t>(ErrorKind::kInternal)));
      message.text = in.get_string();
      message.cause = in.get_string();
      break;
    case MessageKind::kLeave:
      message.text = in.get_string();
      break;
    case MessageKind::kDissolve:
      break;
    case MessageKind::kGiveUp:
      message.text = in.get_string();
      message.waits = read_waits(in);
      break;
    case MessageKind::kInquire:
      message.waits = read_waits(in);
      break;
    case MessageKind::kPosition:
      message.position = read_position(in);
      break;
    case MessageKind::kTimelineChunk: {
      const auto chunk = in.get_bytes();
      message.payload.assign(chunk.begin(), chunk.end());
      break;
    }
    case MessageKind::kTimelineStart:
    case MessageKind::kTimelineStop:
    case MessageKind::kTimelineEnd:
    case MessageKind::kTimeQuestion:
    case MessageKind::kTimeAnswer:
      message.number = in.get<uint64_t>();
      message.peer_time = in.get<int64_t>();
      break;
  }
  if (!in.empty()) {
    throw Error(ErrorKind::kInternal, "a control message goes on behind its end: the peer runs another version");
  }
  return message;
}

ControlPlane::ControlPlane(Transport& transport)
    : transport_(transport), peers_(static_cast<size_t>(transport.size())) {}

void ControlPlane::forget(int peer) {
  peers_[static_cast<size_t>(peer)].forgotten = true;
  peers_[static_cast<size_t>(peer)].outgoing.clear();
}

void ControlPlane::note_end(int peer, std::string end) {
  peers_[static_cast<size_t>(peer)].end = std::move(end);
  forget(peer);
}

void ControlPlane::send(int peer, Bytes message) {
  if (peers_[static_cast<size_t>(peer)].forgotten) return;
  peers_[static_cast<size_t>(peer)].outgoing.push_back(std::move(message));
  flush(peer);
}

bool ControlPlane::flush(int rank) {
  Peer& peer = peers_[static_cast<size_t>(rank)];
  if (!transport_.has(rank) || peer.forgotten) return true;
  Link& link = transport_.control(rank);
  while (!peer.outgoing.empty()) {
    const Bytes& message = peer.outgoing.front();
    const size_t bytes = std::min(message.size() - peer.sent, link.max_frame_bytes());
    std::byte* room = link.try_reserve(bytes);
    if (room == nullptr) return false;
    if (bytes > 0) std::memcpy(room, message.data() + peer.sent, bytes);
    peer.sent += bytes;
    const bool last = peer.sent == message.size();
    link.commit({{.set = 0, .sequence = 0, .lane = last ? kLastFragment : kMoreFollows}, static_cast<uint32_t>(bytes)});
    if (!last) continue;
    peer.outgoing.pop_front();
    peer.sent = 0;
  }
  return link.flush();
}

bool ControlPlane::flush() {
  bool empty = true;
  for (int rank = 0; rank < transport_.size(); ++rank) empty = flush(rank) && empty;
  return empty;
}

bool ControlPlane::receive(const std::function<void(int, Message&)>& handle) {
  bool any = false;
  for (int rank = 0; rank < transport_.size(); ++rank) {
    if (!transport_.has(rank)) continue;
    Link& link = transport_.control(rank);
    naming_sender(rank, [&] { link.poll(); });
    Bytes& incoming = peers_[static_cast<size_t>(rank)].incoming;
    while (Frame* frame = link.front()) {
      any = true;
      const std::span<const std::byte> payload(frame->payload, frame->header.bytes);
      const bool last = frame->header.key.lane == kLastFragment;
      if (last && incoming.empty()) {
        Message message = naming_sender(rank, [&] { return Message::decode(payload); });
        link.consume(*frame);
        handle(rank, message);
        continue;
      }
      if (incoming.size() + payload.size() > kMostMessageBytes) {
        throw Error(ErrorKind::kInternal, "rank " + std::to_string(rank) + ": a control message is too long");
      }
      incoming.insert(incoming.end(), payload.begin(), payload.end());
      link.consume(*frame);
      if (!last) continue;
      const Bytes whole = std::exchange(incoming, Bytes());
      Message message = naming_sender(rank, [&] { return Message::decode(whole); });
      handle(rank, message);
    }
  }
  return any;
}

}  // namespace hvd
