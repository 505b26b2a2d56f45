// A link over a connected stream socket.
#pragma once

#include "base/fd.h"
#include "base/wire.h"
#include "transport/link.h"

namespace hvd {

class TcpLink final : public Link {
 public:
  // Takes the socket over and makes it non-blocking.
  explicit TcpLink(Fd socket);

  [[nodiscard]] size_t max_frame_bytes() const override;
  [[nodiscard]] std::byte* try_reserve(size_t bytes) override;
  void commit(const FrameHeader& header) override;
  bool flush() override;
  bool poll() override;
  bool set_aside() override;

  [[nodiscard]] int fd() const { return socket_.get(); }
  // The peer closed its side, or the connection broke; all that came before has been taken in.
  [[nodiscard]] bool ended() const { return ended_; }
  // Bytes wait until the socket takes them.
  [[nodiscard]] bool wants_to_write() const { return write_offset_ < write_end_; }

 protected:
  void release(uint64_t position) override { released_ = position; }

 private:
  // Reads once; returns what recv() returned, or 0 when nothing more is to be had now.
  size_t receive(std::byte* to, size_t bytes);
  bool receive_frame();

  Fd socket_;
  bool ended_ = false;
  Bytes outgoing_;  // [write_offset_, write_end_) has not been taken by the socket yet
  size_t write_offset_ = 0;
  size_t write_end_ = 0;
  Frame partial_;  // the frame that is arriving
  size_t partial_bytes_ = 0;
  uint64_t received_ = 0;  // payload bytes of complete frames
  uint64_t released_ = 0;
  uint64_t most_waiting_;
};

}  // namespace hvd
