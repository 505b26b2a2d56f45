#include <algorithm>
#include <cstring>

#include "backend/staged/staged_execution.h"

namespace hvd::staged {
namespace {

// The execution holds its place in the queue to the end: its blocks wait for nothing but the device, and those of later
// executions, which wait for other ranks, are not taken before.
class WholeExecution final : public StagedExecution {
 public:
  WholeExecution(Means means, Batch batch, uint32_t sequence)
      : StagedExecution(std::move(means), std::move(batch)), sequence_(sequence) {
    for (const Extent& extent : this->batch().inputs) count_ += extent.count;
    memory_ = std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(count_) * element_bytes());
  }

  [[nodiscard]] bool waits_for(int rank) override { return exchange_ != nullptr && exchange_->waits_for(rank); }
  [[nodiscard]] bool gives_up_on(int rank) override { return exchange_ != nullptr && exchange_->gives_up_on(rank); }

 protected:
  bool go_on() override;

 private:
  [[nodiscard]] std::byte* place_of(int64_t at) { return memory_.get() + static_cast<size_t>(at) * element_bytes(); }
  [[nodiscard]] Range piece_at(int64_t at) const { return {at, std::min(count_, at + block_count())}; }
  [[nodiscard]] size_t bytes_of(const Range& range) const {
    return static_cast<size_t>(range.size()) * element_bytes();
  }

  bool collect();
  void start_exchange();
  bool distribute();

  uint32_t sequence_;
  int64_t count_ = 0;
  std::unique_ptr<std::byte[]> memory_;
  int64_t asked_ = 0;      // elements that are on their way from the device
  int64_t collected_ = 0;  // that are in memory_
  int64_t given_ = 0;      // that are on their way back
  std::unique_ptr<Execution> exchange_;
  bool exchanged_ = false;
};

bool WholeExecution::go_on() {
  bool progressed = collect();
  if (collected_ < count_) return progressed;
  if (exchange_ == nullptr && !exchanged_) {
    start_exchange();
    progressed = true;
  }
  if (!exchanged_) {
    progressed = exchange_->advance() || progressed;
    if (!exchange_->done()) return progressed;
    exchange_.reset();
    exchanged_ = true;
  }
  progressed = distribute() || progressed;
  if (given_ < count_) return progressed;
  hand_over();
  return true;
}

bool WholeExecution::collect() {
  bool progressed = false;
  while (!coming_.empty() && coming_.front().arrived()) {
    const Range piece = piece_at(coming_.front().what);
    std::memcpy(place_of(piece.begin), coming_.front().block.get(), bytes_of(piece));
    coming_.pop_front();
    collected_ = piece.end;
    progressed = true;
  }
  while (asked_ < count_) {
    Block block = try_take_block();
    if (block == nullptr) break;
    const Range piece = piece_at(asked_);
    coming_.emplace_back(asked_, std::move(block));
    copy_in({piece}, coming_.back().block.get());
    coming_.back().event = mark_in();
    asked_ = piece.end;
    progressed = true;
  }
  return progressed;
}

void WholeExecution::start_exchange() {
  Batch host_part = host_batch(sequence_);
  int64_t at = 0;
  for (const Extent& extent : batch().inputs) {
    host_part.inputs.push_back({place_of(at), extent.count});
    at += extent.count;
  }
  host_part.outputs = host_part.inputs;
  exchange_ = host().execute(Collective::kAdasum, std::move(host_part));
}

bool WholeExecution::distribute() {
  bool progressed = false;
  while (given_ < count_) {
    Block block = try_take_block();
    if (block == nullptr) break;
    const Range piece = piece_at(given_);
    std::memcpy(block.get(), place_of(piece.begin), bytes_of(piece));
    going_.emplace_back(given_, std::move(block));
    copy_back({piece}, going_.back().block.get());
    going_.back().event = mark_back();
    given_ = piece.end;
    progressed = true;
  }
  return progressed;
}

}  // namespace

std::unique_ptr<Execution> execute_adasum(Means means, Batch batch, uint32_t sequence) {
  return std::make_unique<WholeExecution>(std::move(means), std::move(batch), sequence);
}

}  // namespace hvd::staged
