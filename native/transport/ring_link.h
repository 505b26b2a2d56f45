// A link over two rings in memory that both ranks see: processes of a host, or threads of a process.
#pragma once

#include <memory>

#include "transport/link.h"
#include "transport/segment.h"

namespace hvd {

class RingLink final : public Link {
 public:
  // `out` lies in the peer's segment, `in` in this rank's; `peer` wakes the peer. `peer_outbox`: what the peer writes
  // for several ranks at once.
  RingLink(RingView out, RingView in, Doorbell peer, std::span<const std::byte> peer_outbox = {});

  [[nodiscard]] size_t max_frame_bytes() const override;
  [[nodiscard]] std::byte* try_reserve(size_t bytes) override;
  void commit(const FrameHeader& header) override;
  // In place of commit(), after try_reserve(0): the payload lies at `offset` in the outbox of this rank. Returns the
  // position behind the frame.
  uint64_t commit_reference(const FrameHeader& header, uint64_t offset);
  // Whether the peer needs nothing before this position any more.
  [[nodiscard]] bool has_read(uint64_t position);
  bool flush() override { return true; }
  bool poll() override;
  bool set_aside() override;

 protected:
  void release(uint64_t position) override;

 private:
  [[nodiscard]] bool has_room(uint64_t up_to);
  // Publishes a frame that takes so many bytes of the ring.
  void publish(uint64_t bytes);
  // Finds the payload of the frame whose header lies at this offset of the ring. Returns the bytes of the ring that the
  // frame takes.
  [[nodiscard]] uint64_t place_payload(Frame& frame, uint64_t offset) const;

  RingView out_;
  RingView in_;
  Doorbell peer_;
  std::span<const std::byte> peer_outbox_;
  uint64_t write_position_ = 0;  // where the next frame's header goes
  uint64_t read_by_peer_ = 0;    // last known
  uint64_t scan_position_ = 0;   // frames before this one are in frames_
  uint64_t released_ = 0;
};

}  // namespace hvd
