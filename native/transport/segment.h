// A rank's inbox: its doorbell, and for each rank of the host a ring for control and one for data that this rank reads.
// Behind them lie this rank's outbox, for what it sends to several of them at once, and room for arrays that all ranks
// of the host see.
//
// The memory is either shared between processes (a memfd: it has no name, so nothing can be left behind) or private to
// a rank that is alone.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "base/fd.h"
#include "transport/doorbell.h"

namespace hvd {

// Headers and payloads in memory that ranks share begin on a cache line.
inline constexpr uint64_t kLine = 64;
[[nodiscard]] constexpr uint64_t to_line(uint64_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

// Positions count bytes since the start and never wrap; the offset in the ring is the position modulo the capacity.
struct RingWords {
  alignas(64) std::atomic<uint64_t> written{0};     // by the sender
  alignas(64) std::atomic<uint64_t> read{0};        // by the receiver
  alignas(64) std::atomic<uint32_t> wants_room{0};  // the sender waits for `read` to move
};

struct RingView {
  RingWords* words = nullptr;
  std::byte* data = nullptr;
  size_t capacity = 0;  // a power of two
};

enum class LinkKind : uint8_t { kControl, kData };

// Where things lie in the segment of a rank with `num_local` ranks on its host.
struct SegmentLayout {
  explicit SegmentLayout(int num_local);
  [[nodiscard]] size_t total_bytes() const;
  [[nodiscard]] size_t offset_of_outbox() const;
  [[nodiscard]] size_t offset_of(int sender, LinkKind kind) const;

  int num_local;
  size_t control_capacity;
  size_t data_capacity;
  size_t outbox_bytes;  // none where a rank cannot have two receivers
};

// How long the payload of a frame may be in the data rings of a host, and on the host where it is shortest.
[[nodiscard]] size_t max_ring_frame_bytes(int num_local);
[[nodiscard]] size_t least_ring_frame_bytes();

// Arrays in the room for arrays begin at multiples of this: a huge page.
inline constexpr size_t kRoomAlignment = size_t{2} << 20;

class Segment {
 public:
  // Makes a segment in shared memory (with a descriptor to pass on), or in private memory without room for arrays.
  static std::shared_ptr<Segment> create_shared(int num_local);
  static std::shared_ptr<Segment> create_private(int num_local);
  // Maps the segment of another rank; the descriptor may be closed afterward.
  static std::shared_ptr<Segment> open(int fd, int num_local);

  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;
  ~Segment();

  [[nodiscard]] int fd() const { return fd_.get(); }
  [[nodiscard]] DoorbellWords* doorbell() const;
  [[nodiscard]] RingView ring(int sender, LinkKind kind) const;
  [[nodiscard]] std::span<std::byte> outbox() const {
    return {base_ + layout_.offset_of_outbox(), layout_.outbox_bytes};
  }

  // Maps `bytes` of the room for arrays, at an offset that is a multiple of kRoomAlignment; the caller unmaps them.
  // Takes the memory now if `reserve`, so that no later access can fail for lack of it; otherwise it is the owner who
  // does. Throws Error if the system refuses.
  [[nodiscard]] std::byte* map_room(size_t offset, size_t bytes, bool reserve) const;

 private:
  Segment(int num_local, Fd fd, size_t room_bytes);
  void construct_words();

  SegmentLayout layout_;
  Fd fd_;
  size_t room_bytes_;
  std::byte* base_ = nullptr;
};

}  // namespace hvd
