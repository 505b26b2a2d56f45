#include "engine/timeline/timeline.h"

#include <bit>
#include <cstring>
#include <utility>

namespace hvd {
namespace {

constexpr size_t kMostNameBytes = 4096;
// Scripts that make a new name for each operation must not fill the memory.
constexpr size_t kMostNumberedNames = size_t{64} << 10;
// What one event may add.
constexpr size_t kMostNewNames = 3;
// Run, first name, both lengths, dropped events.
constexpr size_t kChunkHeaderBytes = 24;

}  // namespace

Bytes TimelineChunk::encode() const {
  WireWriter out;
  out.put(run);
  out.put(first_name);
  out.put(static_cast<uint32_t>(names.size()));
  for (const std::string& name : names) out.put_string(name);
  out.put(num_dropped);
  out.put_bytes(std::as_bytes(std::span(events)));
  return out.take();
}

TimelineChunk TimelineChunk::decode(std::span<const std::byte> bytes) {
  WireReader in(bytes);
  TimelineChunk chunk;
  chunk.run = in.get<uint32_t>();
  chunk.first_name = in.get<uint32_t>();
  chunk.names.resize(in.get_count(sizeof(uint32_t)));
  for (std::string& name : chunk.names) name = in.get_string();
  chunk.num_dropped = in.get<uint64_t>();
  const std::span<const std::byte> events = in.get_bytes();
  if (!in.empty() || events.size() % sizeof(TimelineEvent) != 0) {
    throw Error(ErrorKind::kInternal, "a timeline chunk does not end where it should: another version, or a bug");
  }
  chunk.events.resize(events.size() / sizeof(TimelineEvent));
  if (!events.empty()) std::memcpy(chunk.events.data(), events.data(), events.size());
  for (const TimelineEvent& event : chunk.events) {
    if (event.kind > TimelineEvent::Kind::kMark) {
      throw Error(ErrorKind::kInternal,
                  "a timeline chunk holds an event of an unknown kind: another version, or a bug");
    }
  }
  return chunk;
}

TimelineRecorder::TimelineRecorder(size_t capacity) : capacity_(std::bit_ceil(std::max<size_t>(capacity, 1))) {}

void TimelineRecorder::start(TimePoint now, uint32_t run) {
  active_ = true;
  started_ = now;
  run_ = run;
  ring_.resize(capacity_);
  recorded_ = drained_ = num_dropped_ = 0;
  forget_names();
}

void TimelineRecorder::stop() {
  active_ = false;
  if (drained_ == recorded_) ring_ = {};
}

void TimelineRecorder::begin(std::string_view tensor, std::string_view activity, TimePoint at) {
  if (!active_) return;
  make_room_for_names();
  const uint32_t tensor_number = number_of(tensor);
  record({.kind = TimelineEvent::Kind::kBegin, .tensor = tensor_number, .name = number_of(activity)}, at);
}

void TimelineRecorder::end(std::string_view tensor, TimePoint at, std::string_view dtype, std::string_view shape) {
  if (!active_) return;
  make_room_for_names();
  TimelineEvent event{.kind = TimelineEvent::Kind::kEnd, .tensor = number_of(tensor)};
  if (!dtype.empty()) event.name = number_of(dtype);
  if (!shape.empty()) event.shape = number_of(shape);
  record(event, at);
}

void TimelineRecorder::mark(std::string_view tensor, std::string_view name, TimePoint at) {
  if (!active_) return;
  make_room_for_names();
  TimelineEvent event{.kind = TimelineEvent::Kind::kMark};
  if (!tensor.empty()) event.tensor = number_of(tensor);
  event.name = number_of(name);
  record(event, at);
}

uint32_t TimelineRecorder::number_of(std::string_view name) {
  name = name.substr(0, kMostNameBytes);
  if (const auto found = numbers_.find(name); found != numbers_.end()) return found->second;
  const auto number = static_cast<uint32_t>(names_.size());
  names_.push_back(&numbers_.emplace(name, number).first->first);
  return number;
}

void TimelineRecorder::make_room_for_names() {
  if (names_.size() + kMostNewNames <= kMostNumberedNames) return;
  num_dropped_ += recorded_ - drained_;
  drained_ = recorded_;
  forget_names();
}

void TimelineRecorder::forget_names() {
  numbers_.clear();
  names_.clear();
  num_sent_names_ = 0;
}

void TimelineRecorder::record(TimelineEvent event, TimePoint at) {
  event.at_ns = std::max(at, started_).time_since_epoch().count();
  if (recorded_ - drained_ == capacity_) {
    ++drained_;
    ++num_dropped_;
  }
  ring_[recorded_++ & (capacity_ - 1)] = event;
}

Bytes TimelineRecorder::drain() {
  if (!more()) return {};
  TimelineChunk chunk;
  chunk.run = run_;
  chunk.first_name = num_sent_names_;
  chunk.num_dropped = std::exchange(num_dropped_, 0);
  take_events(chunk);
  if (drained_ == recorded_) {
    // Nothing refers to the names any more, so a table that has grown large can start anew.
    if (names_.size() > kMostNumberedNames / 2) forget_names();
    if (!active_) ring_ = {};
  }
  return chunk.encode();
}

void TimelineRecorder::take_events(TimelineChunk& chunk) {
  size_t bytes = kChunkHeaderBytes;
  while (drained_ != recorded_) {
    const TimelineEvent& event = ring_[drained_ & (capacity_ - 1)];
    // All names up to those of the event must be sent before it. kNoName + 1 is 0.
    const uint32_t num_needed = std::max({event.tensor + 1, event.name + 1, event.shape + 1});
    while (num_sent_names_ < num_needed && bytes < kMostChunkBytes) {
      chunk.names.push_back(*names_[num_sent_names_++]);
      bytes += sizeof(uint32_t) + chunk.names.back().size();
    }
    bytes += sizeof(TimelineEvent);
    if (num_sent_names_ < num_needed || bytes > kMostChunkBytes) return;
    chunk.events.push_back(event);
    ++drained_;
  }
}

}  // namespace hvd
