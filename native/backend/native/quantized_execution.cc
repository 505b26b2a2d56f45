#include "backend/native/quantized_execution.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "backend/native/check_frame.h"
#include "reduce/kernels.h"
#include "reduce/quantize.h"

namespace hvd {
namespace {

// Lanes that run side by side: as in other plans for each member, but more in small jobs, as frames are short.
constexpr size_t kLanesOfMember = 4;
constexpr size_t kLeastLanes = 64;
// What is computed at once stays in the first-level cache.
constexpr int64_t kBlocksAtOnce = 8;
constexpr auto kMostAtOnce = static_cast<size_t>(kBlocksAtOnce * kQuantizedBlock);

std::byte* bytes_of(float* values) { return reinterpret_cast<std::byte*>(values); }

}  // namespace

QuantizedExecution::QuantizedExecution(Batch batch, Plan plan, std::vector<int> hosts, Transport& transport)
    : batch_(std::move(batch)),
      plan_(std::move(plan)),
      hosts_(std::move(hosts)),
      host_(hosts_[static_cast<size_t>(batch_.set_rank)]),
      transport_(transport),
      vector_(batch_),
      own_(kMostAtOnce),
      sum_(kMostAtOnce),
      total_(kMostAtOnce),
      codes_(quantized_bytes(static_cast<int64_t>(kMostAtOnce))) {}

bool QuantizedExecution::advance() {
  bool progressed = false;
  const size_t most_lanes = std::max(kLeastLanes, kLanesOfMember * batch_.members.size());
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

bool QuantizedExecution::waits_for(int rank) {
  for (const ActiveLane& active : active_) {
    const Step& step = active.lane->steps[active.step];
    const FrameKey key = key_of(active.lane->number);
    for (const int peer : step.receive_from) {
      if (batch_.members[static_cast<size_t>(peer)] == rank && link(peer, key).find(key) == nullptr) return true;
    }
    for (const int peer : step.send_to) {
      if (batch_.members[static_cast<size_t>(peer)] != rank) continue;
      if (link(peer, key).try_reserve(bytes_sent(step, peer)) == nullptr) return true;
    }
  }
  return false;
}

// Between hosts values are quantized. Inside of one they are float32 on their way to the leader, where a step sums
// them up, and of the dtype on their way back.
size_t QuantizedExecution::bytes_received(const Step& step, int peer) const {
  const int64_t count = vector_.count_of(step.range);
  if (!is_local(peer)) return static_cast<size_t>(count) + static_cast<size_t>(step.range.size()) * sizeof(float);
  return static_cast<size_t>(count) * (step.with_own ? sizeof(float) : size_of(batch_.dtype));
}

size_t QuantizedExecution::bytes_sent(const Step& step, int peer) const {
  const int64_t count = vector_.count_of(step.range);
  if (!is_local(peer)) return static_cast<size_t>(count) + static_cast<size_t>(step.range.size()) * sizeof(float);
  return static_cast<size_t>(count) * (step.store ? size_of(batch_.dtype) : sizeof(float));
}

bool QuantizedExecution::try_step(const Step& step, uint32_t lane) {
  const FrameKey key = key_of(lane);
  if (!collect_frames(step, key) || !reserve_rooms(step, key)) return false;
  compute(step);
  for (const int peer : step.send_to) {
    link(peer, key).commit({key, static_cast<uint32_t>(bytes_sent(step, peer))});
  }
  for (size_t i = 0; i < frames_.size(); ++i) link(step.receive_from[i], key).consume(*frames_[i]);
  return true;
}

bool QuantizedExecution::collect_frames(const Step& step, const FrameKey& key) {
  frames_.clear();
  for (const int peer : step.receive_from) {
    Frame* frame = link(peer, key).find(key);
    if (frame == nullptr) return false;
    frames_.push_back(frame);
  }
  local_frames_.clear();
  remote_frames_.clear();
  hosts_before_ = 0;
  for (size_t i = 0; i < frames_.size(); ++i) {
    const int peer = step.receive_from[i];
    check_frame(*frames_[i], bytes_received(step, peer), batch_.members[static_cast<size_t>(peer)]);
    (is_local(peer) ? local_frames_ : remote_frames_).push_back({.from = frames_[i]->payload});
    if (hosts_[static_cast<size_t>(peer)] < host_) ++hosts_before_;
  }
  return true;
}

bool QuantizedExecution::reserve_rooms(const Step& step, const FrameKey& key) {
  local_rooms_.clear();
  remote_rooms_.clear();
  for (const int peer : step.send_to) {
    std::byte* room = link(peer, key).try_reserve(bytes_sent(step, peer));
    if (room == nullptr) return false;
    (is_local(peer) ? local_rooms_ : remote_rooms_).push_back({.to = room});
  }
  return true;
}

void QuantizedExecution::compute(const Step& step) {
  for (int64_t at = step.range.begin; at < step.range.end;) {
    const BlockRun run = vector_.run_at(at, std::min(kBlocksAtOnce, step.range.end - at));
    if (!step.store && is_local(step.send_to.front())) {
      give_own(run);
    } else if (!step.with_own) {
      take_result(run);
    } else if (!step.finish) {
      quantize_host(step, run);
    } else {
      sum_host(step, run);
      reduce_hosts(run);
    }
    at += run.blocks;
  }
}

// What this rank contributes: its values and what it has kept of earlier ones, which are gone from here then.
void QuantizedExecution::read_own(const BlockRun& run, float* values) {
  const bool as_it_is = batch_.dtype == DType::kFloat32 && batch_.prescale == 1.0 && run.residual != nullptr;
  if (!as_it_is) to_float32(batch_.dtype, values, run.input, run.count, batch_.prescale);
  if (run.residual == nullptr) return;
  const std::byte* both[] = {as_it_is ? run.input : bytes_of(values), bytes_of(run.residual)};
  reduce(DType::kFloat32, ReduceOp::kSum, bytes_of(values), both, static_cast<size_t>(run.count), 1.0);
  std::fill_n(run.residual, run.count, 0.0F);
}

void QuantizedExecution::give_own(const BlockRun& run) {
  read_own(run, own_.data());
  Place& room = local_rooms_.front();
  const size_t bytes = static_cast<size_t>(run.count) * sizeof(float);
  std::memcpy(room.to, own_.data(), bytes);
  room.to += bytes;
}

// Adds the values of this host's ranks in their order; `sum_` holds them then.
void QuantizedExecution::sum_host(const Step& step, const BlockRun& run) {
  if (local_frames_.empty()) return read_own(run, sum_.data());
  read_own(run, own_.data());
  operands_.clear();
  for (Place& frame : local_frames_) {
    operands_.push_back(frame.from);
    frame.from += static_cast<size_t>(run.count) * sizeof(float);
  }
  operands_.insert(operands_.begin() + step.own_position, bytes_of(own_.data()));
  reduce(DType::kFloat32, ReduceOp::kSum, bytes_of(sum_.data()), operands_, static_cast<size_t>(run.count), 1.0);
}

void QuantizedExecution::quantize_host(const Step& step, const BlockRun& run) {
  sum_host(step, run);
  Place& room = remote_rooms_.front();
  quantize(batch_.quantization, room.to, sum_.data(), run.count);
  if (run.residual != nullptr) {
    dequantize(batch_.quantization, own_.data(), room.to, run.count);
    keep_error(run.residual, sum_.data(), own_.data(), run.count, false);
  }
  room.to += quantized_bytes(run.count);
}

// `sum_` is that of this host. In the order of the hosts, each of them quantized.
void QuantizedExecution::reduce_hosts(const BlockRun& run) {
  const size_t bytes = quantized_bytes(run.count);
  quantize(batch_.quantization, codes_.data(), sum_.data(), run.count);
  if (run.residual != nullptr) {
    dequantize(batch_.quantization, own_.data(), codes_.data(), run.count);
    keep_error(run.residual, sum_.data(), own_.data(), run.count, false);
  }
  for (size_t i = 0; i <= remote_frames_.size(); ++i) {
    const std::byte* codes = codes_.data();
    if (i != hosts_before_) {
      Place& frame = remote_frames_[i < hosts_before_ ? i : i - 1];
      codes = frame.from;
      frame.from += bytes;
    }
    if (i == 0) {
      dequantize(batch_.quantization, total_.data(), codes, run.count);
    } else {
      add_dequantized(batch_.quantization, total_.data(), codes, run.count);
    }
  }
  quantize(batch_.quantization, codes_.data(), total_.data(), run.count);
  for (Place& room : remote_rooms_) {
    std::memcpy(room.to, codes_.data(), bytes);
    room.to += bytes;
  }
  dequantize(batch_.quantization, own_.data(), codes_.data(), run.count);
  if (run.residual != nullptr) keep_error(run.residual, total_.data(), own_.data(), run.count, true);
  store_result(run, own_.data());
}

void QuantizedExecution::take_result(const BlockRun& run) {
  if (!remote_frames_.empty()) {
    Place& frame = remote_frames_.front();
    dequantize(batch_.quantization, own_.data(), frame.from, run.count);
    frame.from += quantized_bytes(run.count);
    store_result(run, own_.data());
    return;
  }
  Place& frame = local_frames_.front();
  const size_t bytes = static_cast<size_t>(run.count) * size_of(batch_.dtype);
  std::memcpy(run.output, frame.from, bytes);
  frame.from += bytes;
}

// Finishes the values, which are overwritten, stores them and passes them on inside the host.
void QuantizedExecution::store_result(const BlockRun& run, float* values) {
  from_float32(batch_.dtype, run.output, values, run.count, batch_.divisor, batch_.postscale);
  const size_t bytes = static_cast<size_t>(run.count) * size_of(batch_.dtype);
  for (Place& room : local_rooms_) {
    std::memcpy(room.to, run.output, bytes);
    room.to += bytes;
  }
}

}  // namespace hvd
