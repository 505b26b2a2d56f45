// What a rank did when: the records that its engine makes, and the chunks in which they travel to rank 0.
//
// A record is a few numbers in a ring of fixed size, so that recording costs little and can never stop the engine: if
// nobody drains the ring, the oldest records are overwritten and counted. Times are those of the rank's own steady
// clock; rank 0 knows how far that is from its own (clock_offset.h).
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/wire.h"

namespace hvd {

inline constexpr uint32_t kNoName = std::numeric_limits<uint32_t>::max();

struct TimelineEvent {
  enum class Kind : uint32_t {
    kBegin,  // an activity of the tensor begins, inside those that are open
    kEnd,    // the activity that began last ends
    kMark,   // something happened, to the tensor or to the rank
  };
  int64_t at_ns = 0;
  Kind kind = Kind::kMark;
  uint32_t tensor = kNoName;  // kNoName only in a mark of the rank
  uint32_t name = kNoName;    // kBegin, kMark: what; kEnd: the dtype, if known
  uint32_t shape = kNoName;   // kEnd: the shape, if known
};
static_assert(sizeof(TimelineEvent) == 24 && std::has_unique_object_representations_v<TimelineEvent>);

// A part of the records of one rank. Names are numbered in the order in which they were sent since the start.
struct TimelineChunk {
  uint32_t run = 0;         // of which timeline of the job
  uint32_t first_name = 0;  // number of names.front(); 0: all earlier names are forgotten
  std::vector<std::string> names;
  uint64_t num_dropped = 0;  // events that are lost between the chunk before and this one
  std::vector<TimelineEvent> events;

  [[nodiscard]] Bytes encode() const;
  // Throws Error if the bytes are no chunk. Numbers of names are not checked: only who has all names can.
  static TimelineChunk decode(std::span<const std::byte> bytes);
};

// Not thread-safe: it belongs to the thread that drives the engine. All names may be of any length, but only their
// first 4 KiB count.
class TimelineRecorder {
 public:
  static constexpr size_t kDefaultCapacity = size_t{64} << 10;
  static constexpr size_t kMostChunkBytes = size_t{256} << 10;

  // `capacity`: the most events that wait to be drained, rounded up to a power of two.
  explicit TimelineRecorder(size_t capacity = kDefaultCapacity);

  // Starts anew: what was not drained is gone. `run` tells the timelines of a job apart: rank 0 ignores chunks of
  // another one. An event of an earlier time counts as one of `now`.
  void start(TimePoint now, uint32_t run = 0);
  // Nothing is recorded from now on; what was recorded can still be drained.
  void stop();
  [[nodiscard]] bool active() const { return active_; }

  // These do nothing while the recorder is not active. Activities of one tensor nest.
  void begin(std::string_view tensor, std::string_view activity, TimePoint at);
  void end(std::string_view tensor, TimePoint at, std::string_view dtype = {}, std::string_view shape = {});
  // Without a tensor ("") it is a mark of the whole rank.
  void mark(std::string_view tensor, std::string_view name, TimePoint at);

  // Whether drain() would return something.
  [[nodiscard]] bool more() const { return drained_ != recorded_ || num_dropped_ > 0; }
  // An encoded chunk of about 256 KiB at most, to be handed to TimelineWriter::add; empty if there is nothing.
  [[nodiscard]] Bytes drain();

 private:
  // Lets std::string_view be looked up without making a std::string of it.
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };

  [[nodiscard]] uint32_t number_of(std::string_view name);
  void make_room_for_names();
  void forget_names();
  void record(TimelineEvent event, TimePoint at);
  void take_events(TimelineChunk& chunk);

  const size_t capacity_;  // a power of two
  bool active_ = false;
  TimePoint started_{};
  uint32_t run_ = 0;
  std::vector<TimelineEvent> ring_;  // event i stands at i % capacity_
  uint64_t recorded_ = 0;            // events since the start
  uint64_t drained_ = 0;             // of these: given away, or overwritten
  uint64_t num_dropped_ = 0;         // overwritten, and not told yet
  std::unordered_map<std::string, uint32_t, Hash, std::equal_to<>> numbers_;
  std::vector<const std::string*> names_;  // by number: the keys of numbers_
  uint32_t num_sent_names_ = 0;
};

}  // namespace hvd
