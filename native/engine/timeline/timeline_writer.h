// The file of the timeline, on rank 0: takes chunks of all ranks and appends them as JSON on a thread of its own, so
// that a slow file system cannot stop the engine.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/wire.h"

namespace hvd {

struct TimelineWriterOptions {
  std::string path;
  int64_t start_epoch_us = 0;           // of `started`, on the wall clock
  TimePoint started{};                  // on the clock of rank 0: time 0 of the file
  bool mark_cycles = false;             // whether marks CYCLE_START are written
  uint32_t run = 0;                     // chunks of another run are ignored
  std::vector<std::string> rank_names;  // of all ranks, "host-a:4711"
  size_t most_queued_bytes = size_t{64} << 20;
  Duration close_patience = std::chrono::seconds(10);
};

// The file holds a complete JSON array after every append; an append follows the add() at once. It holds no more than
// that: whoever reads while an append is under way, or kills the process in it, may find the array without its end.
//
// add(), close() and abandon() must not be called at the same time; error() may be called from any thread.
class TimelineWriter {
 public:
  // Writes the head of the file, in place of what it held, and may block on its file system. Throws Error (kUsage) if
  // it cannot.
  explicit TimelineWriter(TimelineWriterOptions options);
  TimelineWriter(const TimelineWriter&) = delete;
  TimelineWriter& operator=(const TimelineWriter&) = delete;
  // Like close().
  ~TimelineWriter();

  [[nodiscard]] const std::string& path() const { return options_.path; }

  // Hands over a chunk of TimelineRecorder::drain(). `offset_ns`: what to subtract from its times to get times of this
  // rank's clock. Never blocks on the file: where it is too slow, events are dropped, and the file says how many.
  // Throws Error (kInternal) if the chunk is damaged; the writer goes on without it.
  void add(int rank, int64_t offset_ns, const Bytes& encoded);

  // Writes what was added, ends what is open, and ends the thread. Idempotent. If the file system does not take it in
  // time, the thread is left to itself and error() says so.
  void close();

  // Why the file ended early; once. Nothing is written after an error.
  [[nodiscard]] std::optional<Error> error();

  // Must be called in the child of a fork, where the writer's thread does not exist: leaves the file alone.
  void abandon();

 private:
  class Appender;

  const TimelineWriterOptions options_;
  std::vector<uint32_t> num_names_;  // by rank: how many names its chunks may refer to
  // Shared with the thread, which may outlive this object if the file system hangs.
  std::shared_ptr<Appender> appender_;
  std::thread thread_;
};

}  // namespace hvd
