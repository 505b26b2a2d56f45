#include "transport/ring_link.h"

#include <cstring>

#include "base/error.h"

namespace hvd {
namespace {

// A header with this length says: go on at the start of the ring.
constexpr uint32_t kWrap = 0xffffffff;
// Set in the length of a frame whose payload lies in the sender's outbox, at the offset that follows the header.
constexpr uint32_t kInOutbox = 0x80000000;

[[noreturn]] void throw_damaged() {
  throw Error(ErrorKind::kInternal,
              "the frames that a peer left in shared memory do not follow each other: its memory is damaged");
}

}  // namespace

RingLink::RingLink(RingView out, RingView in, Doorbell peer, std::span<const std::byte> peer_outbox)
    : out_(out), in_(in), peer_(peer), peer_outbox_(peer_outbox) {}

size_t RingLink::max_frame_bytes() const { return out_.capacity / 4; }

bool RingLink::has_room(uint64_t up_to) {
  if (up_to - read_by_peer_ <= out_.capacity) return true;
  read_by_peer_ = out_.words->read.load(std::memory_order_acquire);
  if (up_to - read_by_peer_ <= out_.capacity) return true;
  // Also rings, because the peer may have to move frames that it cannot use yet.
  if (out_.words->wants_room.exchange(1, std::memory_order_seq_cst) == 0) peer_.ring();
  read_by_peer_ = out_.words->read.load(std::memory_order_seq_cst);
  return up_to - read_by_peer_ <= out_.capacity;
}

std::byte* RingLink::try_reserve(size_t bytes) {
  const uint64_t offset = write_position_ % out_.capacity;
  const uint64_t needed = kLine + to_line(bytes);
  const bool wraps = offset + needed > out_.capacity;
  const uint64_t skipped = wraps ? out_.capacity - offset : 0;
  if (!has_room(write_position_ + skipped + needed)) return nullptr;
  if (wraps) {
    const FrameHeader skip{.key = {}, .bytes = kWrap};
    std::memcpy(out_.data + offset, &skip, sizeof(skip));
    write_position_ += skipped;
  }
  return out_.data + write_position_ % out_.capacity + kLine;
}

void RingLink::commit(const FrameHeader& header) {
  std::memcpy(out_.data + write_position_ % out_.capacity, &header, sizeof(header));
  publish(kLine + to_line(header.bytes));
}

uint64_t RingLink::commit_reference(const FrameHeader& header, uint64_t offset) {
  std::byte* at = out_.data + write_position_ % out_.capacity;
  const FrameHeader marked{.key = header.key, .bytes = header.bytes | kInOutbox};
  std::memcpy(at, &marked, sizeof(marked));
  std::memcpy(at + sizeof(marked), &offset, sizeof(offset));
  publish(kLine);
  return write_position_;
}

void RingLink::publish(uint64_t bytes) {
  write_position_ += bytes;
  out_.words->written.store(write_position_, std::memory_order_release);
  peer_.ring();
}

bool RingLink::has_read(uint64_t position) {
  if (read_by_peer_ < position) read_by_peer_ = out_.words->read.load(std::memory_order_acquire);
  return read_by_peer_ >= position;
}

bool RingLink::poll() {
  const uint64_t written = in_.words->written.load(std::memory_order_acquire);
  if (written == scan_position_) return false;
  // The peer writes this word, so what it says is checked: frames end where it says, within a ring of what was
  // released.
  if (written - released_ > in_.capacity || scan_position_ - released_ > written - released_) throw_damaged();
  while (scan_position_ != written) {
    const uint64_t offset = scan_position_ % in_.capacity;
    Frame frame;
    std::memcpy(&frame.header, in_.data + offset, sizeof(frame.header));
    if (frame.header.bytes == kWrap) {
      if (in_.capacity - offset > written - scan_position_) throw_damaged();
      scan_position_ += in_.capacity - offset;
      continue;
    }
    const uint64_t needed = place_payload(frame, offset);
    if (needed > in_.capacity - offset || needed > written - scan_position_) throw_damaged();
    scan_position_ += needed;
    frame.end = scan_position_;
    frames_.push_back(std::move(frame));
  }
  return true;
}

uint64_t RingLink::place_payload(Frame& frame, uint64_t offset) const {
  if ((frame.header.bytes & kInOutbox) == 0) {
    frame.payload = in_.data + offset + kLine;
    return kLine + to_line(frame.header.bytes);
  }
  frame.header.bytes &= ~kInOutbox;
  uint64_t place = 0;
  std::memcpy(&place, in_.data + offset + sizeof(frame.header), sizeof(place));
  const uint64_t size = peer_outbox_.size();
  if (place > size || frame.header.bytes > size - place) throw_damaged();
  frame.payload = peer_outbox_.data() + place;
  return kLine;
}

bool RingLink::set_aside() { return in_.words->wants_room.load(std::memory_order_seq_cst) != 0 && Link::set_aside(); }

void RingLink::release(uint64_t position) {
  if (position <= released_) return;
  released_ = position;
  in_.words->read.store(position, std::memory_order_seq_cst);
  if (in_.words->wants_room.load(std::memory_order_seq_cst) != 0) {
    in_.words->wants_room.store(0, std::memory_order_relaxed);
    peer_.ring();
  }
}

}  // namespace hvd
