// Frames in shared memory that a peer writes as it likes, also while they are being read.
#include <cstring>

#include "base/error.h"
#include "fuzz/input.h"
#include "transport/ring_link.h"

namespace {

using hvd::Frame;
using hvd::FrameHeader;
using hvd::LinkKind;
using hvd::RingLink;
using hvd::RingView;
using hvd::fuzz::Input;

// What the peer does to the ring that this rank reads.
void scribble(Input& in, const RingView& ring, uint64_t& written) {
  const size_t offset = written % ring.capacity;
  FrameHeader header{.key = {0, static_cast<uint32_t>(in.below(3)), 0}, .bytes = in.take<uint16_t>()};
  if (in.below(8) == 1) header.bytes = in.flip() ? UINT32_MAX : in.take<uint32_t>();
  const bool refers = in.below(4) == 1;  // to the outbox
  const uint64_t place = in.flip() ? in.take<uint16_t>() : in.take<uint64_t>();
  if (refers) header.bytes |= 0x80000000;
  if (offset + sizeof(header) + sizeof(place) <= ring.capacity) {
    std::memcpy(ring.data + offset, &header, sizeof(header));
    std::memcpy(ring.data + offset + sizeof(header), &place, sizeof(place));
  }
  if (refers) header.bytes = 0;  // of the ring
  written += 64 + (size_t{header.bytes} + 63) / 64 * 64;
  if (header.bytes == UINT32_MAX) written += ring.capacity - offset;
  if (in.below(8) == 1) written = in.flip() ? static_cast<uint64_t>(in.number()) : written - in.take<uint16_t>();
  ring.words->written.store(written);
  if (in.below(8) == 1) ring.words->read.store(in.take<uint64_t>());
  if (in.below(8) == 1) ring.words->wants_room.store(static_cast<uint32_t>(in.below(2)));
}

void use(Input& in, RingLink& link) {
  static_cast<void>(link.poll());
  if (in.below(8) == 1) static_cast<void>(link.set_aside());
  for (size_t i = in.below(4); i > 0; --i) {
    Frame* frame = in.flip() ? link.front() : link.find({0, 1, 0});
    if (frame == nullptr) break;
    // Under AddressSanitizer a copy of more than there is ends here.
    const hvd::Bytes copy(frame->payload, frame->payload + frame->header.bytes);
    link.consume(*frame);
  }
  const size_t bytes = in.take<uint16_t>() % (link.max_frame_bytes() + 1);
  if (std::byte* room = link.try_reserve(bytes)) {
    std::memset(room, 1, bytes);
    link.commit({{0, 0, 0}, static_cast<uint32_t>(bytes)});
  }
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr size_t kCapacity = size_t{64} << 10;
  Input in(data, size);
  // Heap memory of exactly this length, so that AddressSanitizer sees its end.
  const auto there = std::make_unique<std::byte[]>(kCapacity);
  const auto here = std::make_unique<std::byte[]>(kCapacity);
  constexpr size_t kOutbox = size_t{32} << 10;
  const auto outbox = std::make_unique<std::byte[]>(kOutbox);
  hvd::RingWords words_there;
  hvd::RingWords words_here;
  hvd::DoorbellWords bell;
  RingLink link({&words_there, there.get(), kCapacity}, {&words_here, here.get(), kCapacity}, hvd::Doorbell(&bell, -1),
                {outbox.get(), kOutbox});
  uint64_t written = 0;
  try {
    while (!in.empty()) {
      scribble(in, {&words_here, here.get(), kCapacity}, written);
      if (in.below(4) == 1) words_there.read.store(in.flip() ? in.take<uint64_t>() : words_there.written.load());
      use(in, link);
    }
  } catch (const hvd::Error&) {
    return 0;
  }
  return 0;
}
