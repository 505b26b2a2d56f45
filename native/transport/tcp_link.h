// A link over a connected stream socket.
//
// Large payloads are not copied on their way: they go out from where they lie, and come in where they are wanted, or
// into a block that was used a moment ago.
#pragma once

#include <sys/uio.h>

#include <vector>

#include "base/fd.h"
#include "transport/block_pool.h"
#include "transport/link.h"

namespace hvd {

class TcpLink final : public Link {
 public:
  // Takes the socket over and makes it non-blocking. Links may share a pool.
  explicit TcpLink(Fd socket, std::shared_ptr<BlockPool> pool = std::make_shared<BlockPool>());
  ~TcpLink() override;

  [[nodiscard]] size_t max_frame_bytes() const override;
  // A large frame gets room only when all before it has gone to the socket: what waits would have to be copied.
  [[nodiscard]] std::byte* try_reserve(size_t bytes) override;
  void commit(const FrameHeader& header) override;
  [[nodiscard]] bool sends_from_memory() const override { return true; }
  void commit_from(const FrameHeader& header, std::span<const std::span<const std::byte>> parts) override;
  bool flush() override;
  void expect(const FrameKey& key, std::span<std::byte> place) override;
  void withdraw(const FrameKey& key) override;
  // Reads a bounded amount, so that what arrived is used while it is in the cache; see may_read().
  bool poll() override;
  bool set_aside() override;

  [[nodiscard]] int fd() const { return socket_.get(); }
  // The peer closed its side, or the connection broke; all that came before has been taken in.
  [[nodiscard]] bool ended() const { return ended_; }
  // Bytes wait until the socket takes them.
  [[nodiscard]] bool wants_to_write() const { return write_offset_ < write_end_; }

  // From now on poll() tries to read only after notice() said that there is something.
  void rely_on_notice() { noticed_ = false, relies_on_notice_ = true; }
  // The socket has something to read. `at_end`: and it will not report anything any more.
  void notice(bool at_end);
  // Another poll() may find something without another notice().
  [[nodiscard]] bool may_read() const { return noticed_ && !ended_ && waiting_bytes() < most_waiting_; }

  // At the end: tells the peer that nothing follows.
  void end_writes();
  // Throws away what arrives.
  void discard_input();
  // Whether all that was sent has reached the peer's host, or never will.
  [[nodiscard]] bool delivered() const;

 protected:
  void release(uint64_t position) override { released_ = position; }
  void recycle(Frame& frame) override;

 private:
  struct Expected {
    FrameKey key;
    std::span<std::byte> place;
  };

  [[nodiscard]] uint64_t waiting_bytes() const { return received_ - released_; }
  // Sends from these places; returns how much the socket took. If the connection is broken, all.
  size_t send_parts(std::span<iovec> parts);
  void keep_rest(std::span<iovec> parts, size_t sent);
  // Reads once into the payload that is arriving and what comes behind it. Returns how much.
  size_t receive();
  // Takes frames from what was received.
  void parse();
  void start_payload();
  void take_from_lookahead();
  void end_payload();

  Fd socket_;
  std::shared_ptr<BlockPool> pool_;
  bool ended_ = false;
  bool broken_ = false;  // for writing
  bool relies_on_notice_ = false;
  bool noticed_ = true;
  bool at_end_ = false;

  std::unique_ptr<std::byte[]> outgoing_;  // [write_offset_, write_end_) has not been taken by the socket yet
  size_t write_offset_ = 0;
  size_t write_end_ = 0;
  std::vector<iovec> vectors_;  // of the send at hand

  std::vector<Expected> expected_;
  Frame partial_;  // the frame whose payload is arriving, if has_header_
  std::byte* place_ = nullptr;
  size_t payload_bytes_ = 0;  // of it that are there
  bool has_header_ = false;
  std::unique_ptr<std::byte[]> lookahead_;  // [lookahead_begin_, lookahead_end_): read, but not looked at yet
  size_t lookahead_begin_ = 0;
  size_t lookahead_end_ = 0;
  uint64_t received_ = 0;  // payload bytes of complete frames
  uint64_t released_ = 0;
  uint64_t most_waiting_;
};

}  // namespace hvd
