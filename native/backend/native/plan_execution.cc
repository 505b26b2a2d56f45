#include "backend/native/plan_execution.h"

#include <algorithm>
#include <cstring>

#include "backend/native/check_frame.h"
#include "reduce/kernels.h"

namespace hvd {
namespace {

// Lanes that run side by side, for each member: enough to keep every rank busy while frames are on their way, but no
// more bytes than stay in the caches if frames are long.
constexpr size_t kMostLanesPerMember = 4;
constexpr size_t kLeastLanesPerMember = 2;
constexpr size_t kActiveBytesPerMember = size_t{256} << 10;
// Work goes on in pieces that stay in the first-level cache between reducing and passing on.
constexpr size_t kPieceBytes = size_t{16} << 10;
// A frame in more runs of memory than this is cheaper to copy.
constexpr size_t kMostParts = 32;

}  // namespace

PlanExecution::PlanExecution(Batch batch, Plan plan, Transport& transport)
    : batch_(std::move(batch)),
      plan_(std::move(plan)),
      transport_(transport),
      element_bytes_(size_of(batch_.dtype)),
      input_(batch_.inputs, element_bytes_),
      output_(batch_.outputs, element_bytes_),
      most_lanes_(lanes_per_member() * batch_.members.size()) {}

PlanExecution::~PlanExecution() {
  for (const ActiveLane& active : active_) {
    const FrameKey key = key_of(active.lane->number);
    if (active.expects) link(active.lane->steps[active.step].receive_from.front(), key).withdraw(key);
  }
}

size_t PlanExecution::lanes_per_member() const {
  if (plan_.lanes.empty() || plan_.lanes.front().steps.empty()) return kLeastLanesPerMember;
  const Step& first = plan_.lanes.front().steps.front();
  const size_t bytes = static_cast<size_t>(std::max(first.source.size(), first.range.size())) * element_bytes_;
  return std::clamp(kActiveBytesPerMember / std::max<size_t>(bytes, 1), kLeastLanesPerMember, kMostLanesPerMember);
}

bool PlanExecution::advance() {
  bool progressed = false;
  while (active_.size() < most_lanes_ && next_lane_ < plan_.lanes.size()) {
    active_.push_back({&plan_.lanes[next_lane_++], 0});
  }
  for (ActiveLane& active : active_) {
    while (active.step < active.lane->steps.size() && try_step(active.lane->steps[active.step], active.lane->number)) {
      ++active.step;
      active.expects = false;
      progressed = true;
    }
    if (!active.expects && active.step < active.lane->steps.size()) expect_frame(active);
  }
  std::erase_if(active_, [](const ActiveLane& active) { return active.step == active.lane->steps.size(); });
  return progressed;
}

// A frame that is stored as it comes may be put into its place at once. Nothing else in this lane happens before, and
// other lanes have nothing to do with these elements.
void PlanExecution::expect_frame(ActiveLane& active) {
  const Step& step = active.lane->steps[active.step];
  if (step.receive_from.size() != 1 || step.with_own || !step.store || step.finish || step.range.size() == 0) return;
  const Extent place = output_.locate(step.range.begin);
  if (place.count < step.range.size()) return;
  const FrameKey key = key_of(active.lane->number);
  Link& from = link(step.receive_from.front(), key);
  if (from.find(key) != nullptr) return;
  from.expect(key, {place.data, static_cast<size_t>(step.range.size()) * element_bytes_});
  active.expects = true;
}

bool PlanExecution::waits_for(int rank) {
  for (const ActiveLane& active : active_) {
    const Step& step = active.lane->steps[active.step];
    const FrameKey key = key_of(active.lane->number);
    for (const int peer : step.receive_from) {
      if (batch_.members[static_cast<size_t>(peer)] == rank && link(peer, key).find(key) == nullptr) return true;
    }
    const auto bytes = static_cast<size_t>(step.range.size()) * element_bytes_;
    const bool shares = reserve_shared(step, bytes) != nullptr;
    for (const int peer : step.send_to) {
      if (batch_.members[static_cast<size_t>(peer)] != rank) continue;
      if (link(peer, key).try_reserve(shares && ring(peer) != nullptr ? 0 : bytes) == nullptr) return true;
    }
  }
  return false;
}

bool PlanExecution::try_step(const Step& step, uint32_t lane) {
  const FrameKey key = key_of(lane);
  const int64_t count = step.receive_from.empty() ? step.source.size() : step.range.size();
  const size_t bytes = static_cast<size_t>(count) * element_bytes_;
  if (!collect_frames(step, key) || !reserve_rooms(step, key, count)) return false;
  for (size_t i = 0; i < frames_.size(); ++i) {
    check_frame(*frames_[i], bytes, batch_.members[static_cast<size_t>(step.receive_from[i])]);
  }
  if (step.store || !rooms_.empty()) compute(step, count);
  send(step, {key, static_cast<uint32_t>(bytes)});
  for (size_t i = 0; i < frames_.size(); ++i) link(step.receive_from[i], key).consume(*frames_[i]);
  return true;
}

bool PlanExecution::collect_frames(const Step& step, const FrameKey& key) {
  frames_.clear();
  for (const int peer : step.receive_from) {
    Frame* frame = link(peer, key).find(key);
    if (frame == nullptr) return false;
    frames_.push_back(frame);
  }
  return true;
}

bool PlanExecution::reserve_rooms(const Step& step, const FrameKey& key, int64_t count) {
  const size_t bytes = static_cast<size_t>(count) * element_bytes_;
  rooms_.clear();
  from_memory_ = !step.send_to.empty() && locate_value(step, count);
  if (std::byte* shared = reserve_shared(step, bytes)) rooms_.push_back(shared);
  for (const int peer : step.send_to) {
    Link& to = link(peer, key);
    const bool shares = !sharing_.empty() && ring(peer) != nullptr;
    std::byte* room = to.try_reserve(shares ? 0 : bytes);
    if (room == nullptr) return false;
    if (!shares && (!from_memory_ || !to.sends_from_memory())) rooms_.push_back(room);
  }
  return true;
}

// What goes to several ranks of this host is written once, while there is room. Returns it, and fills sharing_.
std::byte* PlanExecution::reserve_shared(const Step& step, size_t bytes) {
  sharing_.clear();
  if (step.send_to.size() < 2) return nullptr;
  for (const int peer : step.send_to) {
    if (RingLink* to = ring(peer)) sharing_.push_back(to);
  }
  std::byte* room = sharing_.size() < 2 ? nullptr : transport_.outbox().try_reserve(bytes);
  if (room == nullptr) sharing_.clear();
  return room;
}

bool PlanExecution::locate_value(const Step& step, int64_t count) {
  const bool sends_own = step.receive_from.empty() && batch_.prescale == 1.0 && !step.finish;
  if (!step.store && !sends_own) return false;
  const LogicalVector& vector = step.store ? output_ : input_;
  const int64_t begin = step.store ? step.range.begin : step.source.begin;
  parts_.clear();
  for (int64_t at = 0; at < count;) {
    if (parts_.size() == kMostParts) return false;
    const Extent extent = vector.locate(begin + at);
    const int64_t length = std::min(extent.count, count - at);
    parts_.emplace_back(extent.data, static_cast<size_t>(length) * element_bytes_);
    at += length;
  }
  return true;
}

void PlanExecution::send(const Step& step, const FrameHeader& header) {
  if (!sharing_.empty()) transport_.outbox().commit(header, sharing_);
  for (const int peer : step.send_to) {
    if (!sharing_.empty() && ring(peer) != nullptr) continue;
    Link& to = link(peer, header.key);
    if (from_memory_ && to.sends_from_memory()) {
      to.commit_from(header, parts_);
    } else {
      to.commit(header);
    }
  }
}

// Walks over the elements in blocks that are contiguous in input and output.
void PlanExecution::compute(const Step& step, int64_t count) {
  const auto block = static_cast<int64_t>(kPieceBytes / element_bytes_);
  for (int64_t at = 0; at < count;) {
    int64_t length = std::min(block, count - at);
    Extent own;
    if (step.with_own) {
      own = step.accumulated ? output_.locate(step.range.begin + at) : input_.locate(step.source.begin + at);
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
    const std::byte* operand = step.accumulated ? own.data : prescaled(own.data, count);
    operands_.insert(operands_.begin() + (frames_.empty() ? 0 : step.own_position), operand);
  }
  const double factor = step.finish ? batch_.postscale : 1.0;
  std::byte* value = stored != nullptr ? stored : rooms_.front() + offset;
  if (step.finish && batch_.divisor != 1) {
    average(batch_.dtype, value, operands_, num_elements, factor, batch_.divisor);
  } else if (operands_.size() > 1) {
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
  scratch_.resize(kPieceBytes);
  scale(batch_.dtype, scratch_.data(), own, static_cast<size_t>(count), batch_.prescale);
  return scratch_.data();
}

}  // namespace hvd
