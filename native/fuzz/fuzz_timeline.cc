// Records of a rank for the timeline: any bytes become lines of JSON or an Error.
#include "engine/timeline/timeline.h"
#include "engine/timeline/timeline_writer.h"
#include "fuzz/input.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using hvd::Bytes;
  using hvd::TimelineChunk;
  hvd::fuzz::Input in(data, size);
  hvd::TimelineWriterOptions options;
  options.path = "/dev/null";
  options.rank_names = {"a:1", "b:2"};
  try {
    hvd::TimelineWriter writer(std::move(options));
    while (!in.empty()) {
      const int rank = static_cast<int>(in.below(2));
      const int64_t offset = in.number();
      const Bytes chunk = in.bytes(4096);
      writer.add(rank, offset, chunk);
      const Bytes once = TimelineChunk::decode(chunk).encode();
      if (TimelineChunk::decode(once).encode() != once) __builtin_trap();
    }
    writer.close();
  } catch (const hvd::Error&) {
    return 0;
  }
  return 0;
}
