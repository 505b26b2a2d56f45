// Payloads for several ranks of a host: written once, into memory of the sender that all of them see; a frame in the
// ring of each refers to it. The memory is a ring as well; a payload makes room when all receivers have used it.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "transport/ring_link.h"

namespace hvd {

class Outbox {
 public:
  // In this rank's segment; without memory there is never room.
  explicit Outbox(std::span<std::byte> memory) : memory_(memory) {}

  // Room for a payload of `bytes`, or nullptr while receivers still need what lies there: nobody rings when they do not
  // any more, so the caller sends another way.
  [[nodiscard]] std::byte* try_reserve(size_t bytes);
  // Sends what lies in the room reserved last to these peers, for each of which try_reserve(0) has just succeeded.
  void commit(const FrameHeader& header, std::span<RingLink* const> links);
  // Forgets what was sent: the links are about to go.
  void clear() { sent_.clear(); }

 private:
  struct Reader {
    RingLink* link = nullptr;
    uint64_t position = 0;  // in the link's stream, behind the reference
  };
  struct Payload {
    uint64_t begin = 0;
    std::vector<Reader> readers;
  };

  // Gives back what all have used, from the oldest on.
  void reclaim();

  std::span<std::byte> memory_;
  uint64_t reserved_ = 0;  // where the next payload begins; positions count bytes and never wrap
  std::deque<Payload> sent_;
  std::vector<std::vector<Reader>> spare_;
};

}  // namespace hvd
