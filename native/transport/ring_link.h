// A link over two rings in memory that both ranks see: processes of a host, or threads of a process.
#pragma once

#include <memory>

#include "transport/link.h"
#include "transport/segment.h"

namespace hvd {

class RingLink final : public Link {
 public:
  // `out` lies in the peer's segment, `in` in this rank's; `peer` wakes the peer.
  RingLink(RingView out, RingView in, Doorbell peer);

  [[nodiscard]] size_t max_frame_bytes() const override;
  [[nodiscard]] std::byte* try_reserve(size_t bytes) override;
  void commit(const FrameHeader& header) override;
  bool flush() override { return true; }
  bool poll() override;
  bool set_aside() override;

 protected:
  void release(uint64_t position) override;

 private:
  [[nodiscard]] bool has_room(uint64_t up_to);

  RingView out_;
  RingView in_;
  Doorbell peer_;
  uint64_t write_position_ = 0;  // where the next frame's header goes
  uint64_t read_by_peer_ = 0;    // last known
  uint64_t scan_position_ = 0;   // frames before this one are in frames_
  uint64_t released_ = 0;
};

}  // namespace hvd
