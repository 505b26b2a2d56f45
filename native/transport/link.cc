#include "transport/link.h"

#include <cstring>

namespace hvd {

Frame* Link::find(const FrameKey& key) {
  for (Frame& frame : frames_) {
    if (!frame.consumed && frame.header.key == key) return &frame;
  }
  return nullptr;
}

Frame* Link::front() {
  for (Frame& frame : frames_) {
    if (!frame.consumed) return &frame;
  }
  return nullptr;
}

// Only called by who got a room from try_reserve(), which is found again: nothing was committed in between.
void Link::commit_from(const FrameHeader& header, std::span<const std::span<const std::byte>> parts) {
  std::byte* room = try_reserve(header.bytes);
  for (const auto& part : parts) {
    std::memcpy(room, part.data(), part.size());
    room += part.size();
  }
  commit(header);
}

void Link::expect(const FrameKey& /*key*/, std::span<std::byte> /*place*/) {}

void Link::withdraw(const FrameKey& /*key*/) {}

void Link::recycle(Frame& /*frame*/) {}

void Link::consume(Frame& frame) {
  frame.consumed = true;
  recycle(frame);
  reclaim();
}

bool Link::set_aside() {
  bool moved = false;
  for (Frame& frame : frames_) {
    if (frame.consumed || frame.aside) continue;
    frame.owned = std::make_unique_for_overwrite<std::byte[]>(frame.header.bytes);
    if (frame.header.bytes > 0) std::memcpy(frame.owned.get(), frame.payload, frame.header.bytes);
    frame.payload = frame.owned.get();
    frame.aside = true;
    moved = true;
  }
  if (moved) reclaim();
  return moved;
}

void Link::reclaim() {
  uint64_t position = 0;
  for (const Frame& frame : frames_) {
    if (!frame.consumed && !frame.aside) break;
    position = frame.end;
  }
  while (!frames_.empty() && frames_.front().consumed) frames_.pop_front();
  if (position != 0) release(position);
}

}  // namespace hvd
