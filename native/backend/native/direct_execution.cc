#include "backend/native/direct_execution.h"

#include <algorithm>
#include <cstring>

#include "reduce/kernels.h"

namespace hvd {
namespace {

// The result of a block is still in the first-level cache when it is copied to the other members.
constexpr size_t kBlockBytes = size_t{8} << 10;
// Messages of other ranks wait no longer than this takes.
constexpr size_t kBytesInARow = size_t{512} << 10;

}  // namespace

DirectExecution::DirectExecution(Batch batch, Transport& transport)
    : batch_(std::move(batch)), transport_(transport), element_bytes_(size_of(batch_.dtype)) {
  for (const auto& extents : batch_.reachable) values_.emplace_back(extents, element_bytes_);
  share_ = share_of(values_.front().count(), batch_.set_rank, static_cast<int>(batch_.members.size()));
  for (size_t member = 0; member < batch_.members.size(); ++member) {
    if (static_cast<int>(member) != batch_.set_rank) untold_.push_back(batch_.members[member]);
  }
  unheard_ = untold_;
  places_.resize(batch_.members.size());
  operands_.resize(batch_.members.size());
  if (batch_.prescale != 1.0) scratch_.resize(kBlockBytes * batch_.members.size());
}

bool DirectExecution::advance() {
  if (share_.size() > 0) {
    reduce_some();
    return true;
  }
  const bool told = tell();
  return hear() || told;
}

bool DirectExecution::waits_for(int rank) {
  if (share_.size() > 0) return false;
  const auto holds = [rank](const std::vector<int>& ranks) {
    return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
  };
  return holds(untold_) || (holds(unheard_) && transport_.data(rank, key()).find(key()) == nullptr);
}

void DirectExecution::reduce_some() {
  const int64_t until = std::min(share_.end, share_.begin + static_cast<int64_t>(kBytesInARow / element_bytes_));
  const auto block = static_cast<int64_t>(kBlockBytes / element_bytes_);
  while (share_.begin < until) {
    int64_t count = std::min(block, until - share_.begin);
    for (size_t member = 0; member < values_.size(); ++member) {
      const Extent run = values_[member].locate(share_.begin);
      places_[member] = run.data;
      count = std::min(count, run.count);
    }
    reduce_block(count);
    share_.begin += count;
  }
}

// In the order of the ranks, so that the result does not depend on who reduces it.
void DirectExecution::reduce_block(int64_t count) {
  const auto num_elements = static_cast<size_t>(count);
  for (size_t member = 0; member < places_.size(); ++member) {
    operands_[member] = places_[member];
    if (batch_.prescale == 1.0) continue;
    std::byte* scaled = scratch_.data() + member * kBlockBytes;
    scale(batch_.dtype, scaled, places_[member], num_elements, batch_.prescale);
    operands_[member] = scaled;
  }
  std::byte* result = places_[static_cast<size_t>(batch_.set_rank)];
  if (batch_.divisor != 1) {
    average(batch_.dtype, result, operands_, num_elements, batch_.postscale, batch_.divisor);
  } else {
    reduce(batch_.dtype, batch_.op, result, operands_, num_elements, batch_.postscale);
  }
  for (std::byte* place : places_) {
    if (place != result) std::memcpy(place, result, num_elements * element_bytes_);
  }
}

bool DirectExecution::tell() {
  const size_t before = untold_.size();
  std::erase_if(untold_, [this](int peer) {
    Link& link = transport_.data(peer, key());
    if (link.try_reserve(0) == nullptr) return false;
    link.commit({key(), 0});
    return true;
  });
  return untold_.size() < before;
}

bool DirectExecution::hear() {
  const size_t before = unheard_.size();
  std::erase_if(unheard_, [this](int peer) {
    Link& link = transport_.data(peer, key());
    Frame* frame = link.find(key());
    if (frame == nullptr) return false;
    link.consume(*frame);
    return true;
  });
  return unheard_.size() < before;
}

}  // namespace hvd
