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

void Link::consume(Frame& frame) {
  frame.consumed = true;
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
