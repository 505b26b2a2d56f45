// A link carries frames in both directions between this rank and one peer, in order and without loss.
//
// A link belongs to the thread that drives the engine. Nothing here blocks: a frame is sent when there is room, and
// what arrived is looked at in any order, so that a frame nobody waits for yet cannot hold up the others behind it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>

namespace hvd {

// What a frame belongs to: an operation (process set and sequence number in it) and a lane of its plan.
struct FrameKey {
  uint32_t set = 0;
  uint32_t sequence = 0;
  uint32_t lane = 0;
  bool operator==(const FrameKey&) const = default;
};

struct FrameHeader {
  FrameKey key;
  uint32_t bytes = 0;
};

struct Frame {
  FrameHeader header;
  const std::byte* payload = nullptr;  // in the transport's memory, or in `owned`
  uint64_t end = 0;                    // position in the stream behind this frame
  bool consumed = false;
  bool aside = false;  // it takes no room of the peer any more
  std::unique_ptr<std::byte[]> owned;
};

class Link {
 public:
  Link() = default;
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;
  virtual ~Link() = default;

  // Payloads may be at most this long.
  [[nodiscard]] virtual size_t max_frame_bytes() const = 0;

  // Room for a payload of `bytes`, or nullptr if the peer has to read first; then the engine is woken when it has.
  // Must be followed by commit() before the next try_reserve().
  [[nodiscard]] virtual std::byte* try_reserve(size_t bytes) = 0;
  virtual void commit(const FrameHeader& header) = 0;

  // Whether a frame goes out best from where its payload lies: then commit_from() spares the copy into the room.
  [[nodiscard]] virtual bool sends_from_memory() const { return false; }
  // In place of commit(): the payload is these parts one after the other. They may change as soon as this returns.
  virtual void commit_from(const FrameHeader& header, std::span<const std::span<const std::byte>> parts);

  // Passes on what is buffered; returns whether nothing is left.
  virtual bool flush() = 0;

  // Takes notice of frames that arrived. Returns whether there were any.
  virtual bool poll() = 0;

  // Where the payload of the next frame of this key may be put when it arrives, if it has this length; a link that
  // need not copy does not care. The frame is found and consumed like any other. Until then the place must stay valid.
  virtual void expect(const FrameKey& key, std::span<std::byte> place);
  // The place is not valid any more; a frame that lies there, or will, is not wanted.
  virtual void withdraw(const FrameKey& key);

  // The oldest frame of this key, or nullptr.
  [[nodiscard]] Frame* find(const FrameKey& key);
  // The oldest frame, or nullptr.
  [[nodiscard]] Frame* front();
  // The frame has been used; its memory goes back to the peer.
  void consume(Frame& frame);
  // Moves waiting frames out of the way so that the peer gets room for more. Returns whether that helped. Called when
  // nothing else can go on: what is needed may lie behind frames that nobody waits for yet.
  virtual bool set_aside();

 protected:
  // Everything up to this position of the incoming stream may be overwritten. Positions may repeat.
  virtual void release(uint64_t position) = 0;
  // The frame was consumed: what it owns may be used again.
  virtual void recycle(Frame& frame);

  std::deque<Frame> frames_;

 private:
  void reclaim();
};

}  // namespace hvd
