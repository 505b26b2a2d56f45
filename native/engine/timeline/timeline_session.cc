#include "engine/timeline/timeline_session.h"

#include <algorithm>

namespace hvd {
namespace {

constexpr Duration kFlushPeriod = std::chrono::milliseconds(100);
constexpr Duration kStopTime = std::chrono::seconds(1);
// The shortest of several round trips tells the time best.
constexpr int kQuestions = 8;

int64_t nanoseconds(TimePoint at) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(at.time_since_epoch()).count();
}

}  // namespace

TimelineSession::TimelineSession(int rank, std::vector<bool> is_remote, Send send, LogSink log)
    : rank_(rank),
      is_remote_(std::move(is_remote)),
      send_(std::move(send)),
      log_(std::move(log)),
      offsets_(is_remote_.size()),
      num_questions_(is_remote_.size(), 0),
      damaged_(is_remote_.size(), false) {}

void TimelineSession::send_control(int peer, MessageKind kind, uint64_t number, int64_t peer_time) {
  Message message;
  message.kind = kind;
  message.number = number;
  message.peer_time = peer_time;
  send_(peer, message);
}

std::unique_ptr<TimelineWriter> TimelineSession::start(std::unique_ptr<TimelineWriter> writer, uint32_t run,
                                                       TimePoint now) {
  std::unique_ptr<TimelineWriter> before = take_writer();
  writer_ = std::move(writer);
  run_ = run;
  recorder_.start(now, run);
  damaged_.assign(damaged_.size(), false);
  for (size_t peer = 0; peer < is_remote_.size(); ++peer) {
    if (static_cast<int>(peer) == rank_) continue;
    send_control(static_cast<int>(peer), MessageKind::kTimelineStart, run);
    num_questions_[peer] = 0;
    if (is_remote_[peer]) ask_time(static_cast<int>(peer), now);
  }
  return before;
}

void TimelineSession::stop(TimePoint now) {
  recorder_.stop();
  flush(now, true);
  stopping_ = true;
  stop_until_ = now + kStopTime;
  for (size_t peer = 0; peer < is_remote_.size(); ++peer) {
    if (static_cast<int>(peer) == rank_ || left_.contains(static_cast<int>(peer))) continue;
    waiting_for_.insert(static_cast<int>(peer));
    send_control(static_cast<int>(peer), MessageKind::kTimelineStop, run_);
  }
}

void TimelineSession::peer_left(int peer) {
  left_.insert(peer);
  waiting_for_.erase(peer);
}

std::unique_ptr<TimelineWriter> TimelineSession::take_writer() {
  stopping_ = false;
  waiting_for_.clear();
  return std::move(writer_);
}

void TimelineSession::ask_time(int peer, TimePoint now) {
  ++num_questions_[static_cast<size_t>(peer)];
  send_control(peer, MessageKind::kTimeQuestion, static_cast<uint64_t>(nanoseconds(now)));
}

void TimelineSession::handle(int peer, const Message& message, TimePoint now) {
  switch (message.kind) {
    case MessageKind::kTimelineStart:
      run_ = static_cast<uint32_t>(message.number);
      recorder_.start(now, run_);
      break;
    case MessageKind::kTimelineStop:
      recorder_.stop();
      flush(now, true);
      send_control(peer, MessageKind::kTimelineEnd, run_);
      break;
    case MessageKind::kTimelineEnd:
      if (message.number == run_) waiting_for_.erase(peer);
      break;
    case MessageKind::kTimelineChunk:
      write(peer, message.payload);
      if (writer_ != nullptr && is_remote_[static_cast<size_t>(peer)]) ask_time(peer, now);
      break;
    case MessageKind::kTimeQuestion:
      send_control(peer, MessageKind::kTimeAnswer, message.number, nanoseconds(now));
      break;
    case MessageKind::kTimeAnswer:
      offsets_[static_cast<size_t>(peer)].add_sample(static_cast<int64_t>(message.number), message.peer_time,
                                                     nanoseconds(now));
      if (num_questions_[static_cast<size_t>(peer)] < kQuestions) ask_time(peer, now);
      break;
    default:
      break;
  }
}

void TimelineSession::write(int rank, const Bytes& chunk) {
  const auto index = static_cast<size_t>(rank);
  if (writer_ == nullptr || damaged_[index]) return;
  try {
    writer_->add(rank, offsets_[index].offset(), chunk);
  } catch (const Error& error) {
    damaged_[index] = true;
    log_(LogLevel::kWarning, "the timeline goes on without rank " + std::to_string(rank) + ": " + error.what());
  }
  if (const auto error = writer_->error())
    log_(LogLevel::kWarning, std::string("the timeline ends early: ") + error->what());
}

void TimelineSession::flush(TimePoint now, bool all) {
  if (!recorder_.more() || (!all && now < next_flush_)) return;
  next_flush_ = now + kFlushPeriod;
  while (recorder_.more()) {
    Bytes chunk = recorder_.drain();
    if (rank_ == 0) {
      write(0, chunk);
      continue;
    }
    Message message;
    message.kind = MessageKind::kTimelineChunk;
    message.payload = std::move(chunk);
    send_(0, message);
  }
}

std::optional<Duration> TimelineSession::until_flush(TimePoint now) const {
  if (stopping_) return std::max<Duration>(std::min<Duration>(stop_until_ - now, kFlushPeriod), Duration::zero());
  if (!recorder_.more()) return std::nullopt;
  return std::max<Duration>(next_flush_ - now, Duration::zero());
}

void TimelineSession::abandon() {
  if (writer_ != nullptr) writer_->abandon();
}

}  // namespace hvd
