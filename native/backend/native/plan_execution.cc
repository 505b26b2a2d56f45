#include "backend/native/plan_execution.h"

#include <cstring>

#include "base/error.h"
#include "reduce/kernels.h"

namespace hvd {
namespace {

// Lanes that run side by side, for each member: enough to keep every rank busy while frames are on their way.
constexpr size_t kActiveLanesPerMember = 4;
// Work goes on in pieces that stay in the first-level cache between reducing and passing on.
constexpr size_t kBlockBytes = size_t{16} << 10;

}  // namespace

PlanExecution::PlanExecution(Batch batch, Plan plan, Transport& transport)
    : batch_(std::move(batch)),
      plan_(std::move(plan)),
      transport_(transport),
      element_bytes_(size_of(batch_.dtype)),
      input_(batch_.inputs, element_bytes_),
      output_(batch_.outputs, element_bytes_) {}

bool PlanExecution::advance() {
  bool progressed = false;
  const size_t most_lanes = kActiveLanesPerMember * batch_.members.size();
  while (active_.size() < most_lanes && next_lane_ < plan_.lanes.size()) {
    active_.push_back({&plan_.lanes[next_lane_++], 0});
  }
  for (ActiveLane& active : active_) {
    while (active.step < active.lane->steps.size() && try_step(active.lane->steps[active.step], active.lane->number)) {
      ++active.step;
      progressed = true;
    }
  }
  std::erase_if(active_, [](const ActiveLane& active) { return active.step == active.lane->steps.size(); });
  return progressed;
}

bool PlanExecution::waits_for(int rank) {
  for (const ActiveLane& active : active_) {
    const Step& step = active.lane->steps[active.step];
    const FrameKey key{batch_.set, batch_.sequence, active.lane->number};
    for (const int peer : step.receive_from) {
      if (batch_.members[static_cast<size_t>(peer)] == rank && link(peer).find(key) == nullptr) return true;
    }
    for (const int peer : step.send_to) {
      const auto bytes = static_cast<size_t>(step.range.size()) * element_bytes_;
      if (batch_.members[static_cast<size_t>(peer)] == rank && link(peer).try_reserve(bytes) == nullptr) return true;
    }
  }
  return false;
}

bool PlanExecution::try_step(const Step& step, uint32_t lane) {
  const FrameKey key{batch_.set, batch_.sequence, lane};
  const int64_t count = step.receive_from.empty() ? step.source.size() : step.range.size();
  const size_t bytes = static_cast<size_t>(count) * element_bytes_;
  if (!collect_frames(step, key) || !reserve_rooms(step, bytes)) return false;
  for (const Frame* frame : frames_) {
    if (frame->header.bytes != bytes) {
      throw Error(ErrorKind::kInternal, "a frame has " + std::to_string(frame->header.bytes) +
                                            " bytes where the plan says " + std::to_string(bytes) +
                                            ": ranks follow different plans");
    }
  }
  compute(step, count);
  for (const int peer : step.send_to) link(peer).commit({key, static_cast<uint32_t>(bytes)});
  for (size_t i = 0; i < frames_.size(); ++i) link(step.receive_from[i]).consume(*frames_[i]);
  return true;
}

bool PlanExecution::collect_frames(const Step& step, const FrameKey& key) {
  frames_.clear();
  for (const int peer : step.receive_from) {
    Frame* frame = link(peer).find(key);
    if (frame == nullptr) return false;
    frames_.push_back(frame);
  }
  return true;
}

bool PlanExecution::reserve_rooms(const Step& step, size_t bytes) {
  rooms_.clear();
  for (const int peer : step.send_to) {
    std::byte* room = link(peer).try_reserve(bytes);
    if (room == nullptr) return false;
    rooms_.push_back(room);
  }
  return true;
}

// Walks over the elements in blocks that are contiguous in input and output.
void PlanExecution::compute(const Step& step, int64_t count) {
  const auto block = static_cast<int64_t>(kBlockBytes / element_bytes_);
  for (int64_t at = 0; at < count;) {
    int64_t length = std::min(block, count - at);
    Extent own;
    if (step.with_own) {
      own = input_.locate(step.source.begin + at);
      length = std::min(length, own.count);
    }
    std::byte* stored = nullptr;
    if (step.store) {
      const Extent place = output_.locate(step.range.begin + at);
      stored = place.data;
      length = std::min(length, place.count);
    }
    compute_block(step, own, stored, static_cast<size_t>(at) * element_bytes_, length);
    at += length;
  }
}

// `offset` is where the block lies in the frames, in bytes; `stored` is its place in the output or nullptr.
void PlanExecution::compute_block(const Step& step, const Extent& own, std::byte* stored, size_t offset,
                                  int64_t count) {
  const auto num_elements = static_cast<size_t>(count);
  const size_t bytes = num_elements * element_bytes_;
  operands_.clear();
  for (const Frame* frame : frames_) operands_.push_back(frame->payload + offset);
  if (step.with_own) {
    operands_.insert(operands_.begin() + (frames_.empty() ? 0 : step.own_position), prescaled(own.data, count));
  }
  const double factor = step.finish ? batch_.postscale : 1.0;
  std::byte* value = stored != nullptr ? stored : rooms_.front() + offset;
  if (operands_.size() > 1) {
    reduce(batch_.dtype, batch_.op, value, operands_, num_elements, factor);
  } else if (factor != 1.0) {
    scale(batch_.dtype, value, operands_.front(), num_elements, factor);
  } else if (value != operands_.front()) {
    std::memcpy(value, operands_.front(), bytes);
  }
  for (std::byte* room : rooms_) {
    if (room + offset != value) std::memcpy(room + offset, value, bytes);
  }
}

const std::byte* PlanExecution::prescaled(const std::byte* own, int64_t count) {
  if (batch_.prescale == 1.0) return own;
  scratch_.resize(kBlockBytes);
  scale(batch_.dtype, scratch_.data(), own, static_cast<size_t>(count), batch_.prescale);
  return scratch_.data();
}

}  // namespace hvd
