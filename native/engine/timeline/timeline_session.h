// The timeline of a job: every rank records, and sends what it recorded to rank 0, which writes the file.
//
// Rank 0 starts and stops it for all: its word reaches a rank before the next answer does. It asks ranks on other hosts
// for the time, so that all events are told on one clock; ranks of one host share theirs.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/log.h"
#include "engine/messages/control.h"
#include "engine/timeline/clock_offset.h"
#include "engine/timeline/timeline.h"
#include "engine/timeline/timeline_writer.h"

namespace hvd {

class TimelineSession {
 public:
  using Send = std::function<void(int peer, const Message& message)>;

  // `is_remote[r]`: rank r has a clock of its own.
  TimelineSession(int rank, std::vector<bool> is_remote, Send send, LogSink log);

  // On rank 0. Returns the writer before, if there was one; whoever takes it closes it, which may take a while.
  [[nodiscard]] std::unique_ptr<TimelineWriter> start(std::unique_ptr<TimelineWriter> writer, uint32_t run,
                                                      TimePoint now);
  // On rank 0: asks all ranks for the last of it.
  void stop(TimePoint now);
  // On rank 0, after stop(): the writer once all ranks that are left have sent their last records, or the time is over.
  [[nodiscard]] bool stopping() const { return stopping_; }
  [[nodiscard]] bool stopped(TimePoint now) const { return waiting_for_.empty() || now >= stop_until_; }
  [[nodiscard]] std::unique_ptr<TimelineWriter> take_writer();
  [[nodiscard]] bool writing() const { return writer_ != nullptr; }
  [[nodiscard]] std::string path() const { return writer_ != nullptr ? writer_->path() : std::string(); }

  // A message about the timeline.
  void handle(int peer, const Message& message, TimePoint now);
  void peer_left(int peer);
  // Sends, or writes, what was recorded, unless it did so a moment ago.
  void flush(TimePoint now, bool all = false);
  [[nodiscard]] std::optional<Duration> until_flush(TimePoint now) const;

  void abandon();
  [[nodiscard]] TimelineRecorder& recorder() { return recorder_; }

 private:
  void write(int rank, const Bytes& chunk);
  void ask_time(int peer, TimePoint now);
  void send_control(int peer, MessageKind kind, uint64_t number, int64_t peer_time = 0);

  const int rank_;
  const std::vector<bool> is_remote_;
  const Send send_;
  const LogSink log_;
  TimelineRecorder recorder_;
  TimePoint next_flush_{};
  uint32_t run_ = 0;

  // On rank 0.
  std::unique_ptr<TimelineWriter> writer_;
  std::vector<ClockOffset> offsets_;  // by rank
  std::vector<int> num_questions_;    // by rank: how often it was asked for the time in a row
  std::vector<bool> damaged_;         // by rank: its chunks are not read any more
  bool stopping_ = false;
  std::set<int> waiting_for_;
  std::set<int> left_;
  TimePoint stop_until_{};
};

}  // namespace hvd
