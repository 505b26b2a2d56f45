// Control messages between ranks: whole messages of any length over the frames of the control links.
#pragma once

#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "engine/messages/position_report.h"
#include "engine/messages/request.h"
#include "transport/transport.h"

namespace hvd {

enum class MessageKind : uint8_t {
  kAnnounce,  // member to coordinator: names that became ready
  kRespond,   // coordinator to members: what to do, in this order
  kResend,    // coordinator to a member: announce this again, in full; its number stands for something else now
  kBye,       // the rank leaves; it will not take part in anything any more
  kAbort,     // everything fails: the first cause
  kLeave,     // member to coordinator: this rank will submit nothing more to the process set
  kDissolve,  // coordinator of a process set to all ranks: all its members have left it
  kGiveUp,    // member to coordinator: an operation has taken longer than its caller allows, so the job ends
  kInquire,   // where are you? And who has not announced these operations?
  kPosition,  // here

  // Of the timeline; see timeline_session.h.
  kTimelineStart,
  kTimelineStop,
  kTimelineEnd,    // that was the last chunk
  kTimelineChunk,  // records of the sender
  kTimeQuestion,   // what time is it?
  kTimeAnswer,     // the question's time, and the answerer's
};

struct Message {
  MessageKind kind = MessageKind::kAnnounce;
  uint32_t set = 0;
  std::vector<Announcement> announcements;
  std::vector<Response> responses;
  uint64_t digest = 0;      // kResend: of what was announced
  uint64_t number = 0;      // kTimeline…: of the timeline; kTime…: when the question was asked
  int64_t peer_time = 0;    // kTimeAnswer
  Bytes payload;            // kTimelineChunk
  std::vector<Wait> waits;  // kInquire, kGiveUp: that the receiver coordinates
  ErrorKind error_kind = ErrorKind::kInternal;
  std::string text;         // kBye, kAbort, kGiveUp: the reason; kLeave: "file:line" of the user's call
  std::string cause;        // kBye: the end of another rank that made this one fail; may be empty
  PositionReport position;  // kPosition

  [[nodiscard]] Bytes encode() const;
  // Throws Error if the bytes are no message.
  static Message decode(std::span<const std::byte> bytes);
};

class ControlPlane {
 public:
  explicit ControlPlane(Transport& transport);

  // Sends now what there is room for and keeps the rest for flush(). Never blocks.
  void send(int peer, const Message& message) { send(peer, message.encode()); }
  void send(int peer, Bytes message);
  // Returns whether nothing is left to be sent.
  bool flush();
  // The peer does not read any more: drops what waits for it and what comes later.
  void forget(int peer);
  // The peer has said goodbye; `end`: what was first. Also forgets it.
  void note_end(int peer, std::string end);
  // How the peer ended, if it said so.
  [[nodiscard]] const std::optional<std::string>& end_of(int peer) const {
    return peers_[static_cast<size_t>(peer)].end;
  }

  // Calls `handle`, which may take it apart, for each message that has arrived completely; returns whether any has.
  bool receive(const std::function<void(int peer, Message&)>& handle);

 private:
  struct Peer {
    std::deque<Bytes> outgoing;
    size_t sent = 0;  // of the first message
    Bytes incoming;   // fragments of a message that is not complete
    bool forgotten = false;
    std::optional<std::string> end = {};
  };
  bool flush(int rank);

  Transport& transport_;
  std::vector<Peer> peers_;
};

}  // namespace hvd
