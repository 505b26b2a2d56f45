#include "backend/staged/staged_execution.h"

#include <algorithm>

#include "backend/staged/staged_backend.h"
#include "base/error.h"

namespace hvd::staged {

StagedExecution::StagedExecution(Means means, Batch batch)
    : means_(std::move(means)),
      batch_(std::move(batch)),
      element_bytes_(size_of(batch_.dtype)),
      input_(batch_.inputs, element_bytes_),
      output_(batch_.outputs, element_bytes_),
      in_(means_.site, means_.bell),
      back_(means_.site, means_.bell) {
  for (const device::SharedEvent& ready : batch_.ready) {
    ready->hold(in_.stream(), *batch_.gpu);
    ready->hold(back_.stream(), *batch_.gpu);
  }
  means_.queue->enter(this);
}

StagedExecution::~StagedExecution() {
  leave_queue();
  if (done_) {
    in_.end();
    back_.end();
    return;
  }
  try {
    let_go();
  } catch (const std::exception&) {  // already reported: what ends an execution early is an error of its own
  }
}

void StagedExecution::let_go() {
  std::vector<Block> coming;
  std::vector<Block> going;
  for (Copied& copied : coming_) coming.push_back(std::move(copied.block));
  for (Copied& copied : going_) going.push_back(std::move(copied.block));
  means_.keeper->keep(*batch_.gpu, in_.stream(), std::move(coming));
  means_.keeper->keep(*batch_.gpu, back_.stream(), std::move(going));
  if (may_begin()) means_.keeper->wait();
}

// Otherwise nothing has touched the tensors yet, and what the program computes may take its time.
bool StagedExecution::may_begin() const {
  return std::all_of(batch_.ready.begin(), batch_.ready.end(),
                     [](const device::SharedEvent& ready) { return ready->reached(); });
}

bool StagedExecution::advance() {
  if (done_) return false;
  try {
    bool progressed = release_blocks();
    if (finished_ == nullptr) progressed = go_on() || progressed;
    if (finished_ == nullptr || !finished_->reached()) return progressed;
    release_blocks();
    done_ = true;
    return true;
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kInternal) throw;
    const int rank = batch_.members[static_cast<size_t>(batch_.set_rank)];
    throw Error(error.kind(), "rank " + std::to_string(rank) + " could not take " + batch_.what +
                                  " through host memory: " + error.what());
  }
}

void StagedExecution::hand_over() {
  leave_queue();
  finished_ = last_back_ != nullptr ? last_back_ : back_.mark();
}

device::SharedEvent StagedExecution::mark_back() {
  last_back_ = back_.mark();
  return last_back_;
}

bool StagedExecution::release_blocks() {
  bool released = false;
  while (!going_.empty() && going_.front().arrived()) {
    going_.pop_front();
    released = true;
  }
  return released;
}

void StagedExecution::copy_in(const std::vector<Range>& ranges, std::byte* to) {
  for (const Range& range : ranges) {
    for (int64_t at = range.begin; at < range.end;) {
      const Extent extent = input_.locate(at);
      const int64_t count = std::min(extent.count, range.end - at);
      const size_t bytes = static_cast<size_t>(count) * element_bytes_;
      batch_.gpu->copy_to_host(to, extent.data, bytes, in_.stream());
      to += bytes;
      at += count;
    }
  }
}

void StagedExecution::copy_back(const std::vector<Range>& ranges, const std::byte* from) {
  for (const Range& range : ranges) {
    for (int64_t at = range.begin; at < range.end;) {
      const Extent extent = output_.locate(at);
      const int64_t count = std::min(extent.count, range.end - at);
      const size_t bytes = static_cast<size_t>(count) * element_bytes_;
      batch_.gpu->copy_from_host(extent.data, from, bytes, back_.stream());
      from += bytes;
      at += count;
    }
  }
}

int64_t StagedExecution::block_count() const {
  return static_cast<int64_t>(means_.site->pool->block_bytes() / element_bytes_);
}

Batch StagedExecution::host_batch(uint32_t sequence) const {
  Batch host;
  host.set = batch_.set + kStagedSets;
  host.sequence = sequence;
  host.members = batch_.members;
  host.set_rank = batch_.set_rank;
  host.dtype = batch_.dtype;
  host.op = batch_.op;
  host.prescale = batch_.prescale;
  host.divisor = batch_.divisor;
  host.postscale = batch_.postscale;
  host.what = batch_.what;
  return host;
}

}  // namespace hvd::staged
