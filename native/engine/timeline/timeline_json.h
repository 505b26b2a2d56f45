// Records of all ranks as text in the Trace Event Format, which Perfetto and chrome://tracing read:
// https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
//
// A rank is a process and a tensor name a thread of it, with the same number on all ranks. Times are microseconds since
// the timeline started, on the clock of rank 0.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/timeline/timeline.h"

namespace hvd {

// A JSON string with its quotes. Bytes that are not UTF-8 become U+FFFD.
[[nodiscard]] std::string to_json(std::string_view text);

// Not thread-safe. Every record is preceded by ",\n", but for the first of the file.
class TimelineJson {
 public:
  // `rank_names`: what follows "rank 3" in the name of its process, for example "host-a:4711", or "".
  TimelineJson(const std::vector<std::string>& rank_names, bool mark_cycles);

  // The records with which the file begins.
  [[nodiscard]] std::string header(int64_t start_epoch_us);

  // Adds a chunk whose times are nanoseconds since the start and whose numbers of names were checked. Ends without a
  // beginning are left out; where events are lost, everything that is open on the rank ends.
  void add(int rank, const TimelineChunk& chunk);
  // Ends everything that is open.
  void end_all();

  [[nodiscard]] size_t bytes() const { return text_.size(); }
  // What was added since it was called last; may be empty.
  [[nodiscard]] std::string take() { return std::exchange(text_, {}); }

 private:
  // The line of one tensor on one rank. That of tensor number 0 holds the marks of the rank.
  struct Track {
    bool named = false;
    uint32_t num_open = 0;
    int64_t last_ns = 0;
  };
  struct Rank {
    int rank = 0;
    std::string where;
    bool named = false;
    int64_t last_ns = 0;
    std::vector<std::string> names;  // as JSON
    std::vector<Track> tracks;       // by number of the tensor
  };

  void name_rank(Rank& rank);
  // The number of the tensor with this name, whose line has a name from now on.
  [[nodiscard]] uint32_t tensor_of(Rank& rank, uint32_t name);
  Track& named_track(Rank& rank, uint32_t tensor, std::string_view json_name);
  void add_gap(Rank& rank, uint64_t num_dropped, int64_t at_ns);
  void add_begin(Rank& rank, const TimelineEvent& event);
  void add_end(Rank& rank, const TimelineEvent& event);
  void add_mark(Rank& rank, const TimelineEvent& event);
  void end_open(Rank& rank, int64_t at_ns);

  // Begins a record: its phase, time and place.
  void begin_event(std::string_view phase, Rank& rank, uint32_t tensor, int64_t at_ns);
  void put_key(std::string_view key);
  void put(std::string_view key, std::string_view json);
  void put(std::string_view key, int64_t value);

  const bool mark_cycles_;
  std::vector<Rank> ranks_;
  std::unordered_map<std::string, uint32_t> tensors_;  // number by name as JSON, from 1 on
  std::string text_;
};

}  // namespace hvd
