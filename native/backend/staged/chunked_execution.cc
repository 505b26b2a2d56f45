#include <algorithm>

#include "backend/staged/staged_execution.h"

namespace hvd::staged {
namespace {

class ChunkedExecution final : public StagedExecution {
 public:
  ChunkedExecution(Means means, Batch batch, std::unique_ptr<Chunks> chunks, uint32_t first_sequence)
      : StagedExecution(std::move(means), std::move(batch)),
        chunks_(std::move(chunks)),
        first_sequence_(first_sequence) {}

  [[nodiscard]] bool waits_for(int rank) override {
    return std::any_of(exchanged_.begin(), exchanged_.end(),
                       [rank](const Exchanged& chunk) { return chunk.execution->waits_for(rank); });
  }
  [[nodiscard]] bool gives_up_on(int rank) override {
    return std::any_of(exchanged_.begin(), exchanged_.end(),
                       [rank](const Exchanged& chunk) { return chunk.execution->gives_up_on(rank); });
  }

 protected:
  bool go_on() override;

 private:
  struct Exchanged {
    Layout layout;
    Block block;
    std::unique_ptr<Execution> execution;
  };

  bool start_copy();
  void start_exchange();
  bool advance_exchanges();
  void start_copy_back(Exchanged chunk);

  std::unique_ptr<Chunks> chunks_;
  uint32_t first_sequence_;
  int64_t next_ = 0;  // chunk to come from the device
  std::vector<Exchanged> exchanged_;
};

bool ChunkedExecution::go_on() {
  bool progressed = false;
  while (next_ < chunks_->num_chunks() && start_copy()) progressed = true;
  while (!coming_.empty() && coming_.front().arrived()) {
    start_exchange();
    progressed = true;
  }
  progressed = advance_exchanges() || progressed;
  if (next_ < chunks_->num_chunks() || !coming_.empty() || !exchanged_.empty()) return progressed;
  hand_over();
  return true;
}

// Returns false if there is no memory for it yet.
bool ChunkedExecution::start_copy() {
  const Layout layout = chunks_->layout(next_);
  Copied copied(next_, nullptr);
  if (layout.count > 0) {
    copied.block = try_take_block();
    if (copied.block == nullptr) return false;
  }
  coming_.push_back(std::move(copied));  // before the copies: memory is kept even if one of them fails
  if (!layout.inputs.empty()) {
    std::byte* place = coming_.back().block.get() + static_cast<size_t>(layout.input_at) * element_bytes();
    copy_in(layout.inputs, place);
    coming_.back().event = mark_in();
  }
  if (++next_ == chunks_->num_chunks()) leave_queue();
  return true;
}

void ChunkedExecution::start_exchange() {
  Copied arrived = std::move(coming_.front());
  coming_.pop_front();
  Exchanged chunk{.layout = chunks_->layout(arrived.what), .block = std::move(arrived.block), .execution = {}};
  Batch host_part = host_batch(first_sequence_ + static_cast<uint32_t>(arrived.what));
  const auto extent_of = [&](int64_t at, int64_t count) {
    return Extent{count > 0 ? chunk.block.get() + static_cast<size_t>(at) * element_bytes() : nullptr, count};
  };
  host_part.inputs = {extent_of(chunk.layout.input_at, chunk.layout.input_count())};
  host_part.outputs = {extent_of(chunk.layout.output_at, chunk.layout.output_count())};
  chunk.execution = chunks_->start(host(), std::move(host_part), arrived.what);
  exchanged_.push_back(std::move(chunk));
}

bool ChunkedExecution::advance_exchanges() {
  bool progressed = false;
  for (size_t i = 0; i < exchanged_.size();) {
    progressed = exchanged_[i].execution->advance() || progressed;
    if (!exchanged_[i].execution->done()) {
      ++i;
      continue;
    }
    Exchanged chunk = std::move(exchanged_[i]);
    exchanged_.erase(exchanged_.begin() + static_cast<std::ptrdiff_t>(i));
    start_copy_back(std::move(chunk));
    progressed = true;
  }
  return progressed;
}

void ChunkedExecution::start_copy_back(Exchanged chunk) {
  chunk.execution.reset();
  if (chunk.layout.outputs.empty()) return;
  going_.emplace_back(0, std::move(chunk.block));
  copy_back(chunk.layout.outputs,
            going_.back().block.get() + static_cast<size_t>(chunk.layout.output_at) * element_bytes());
  going_.back().event = mark_back();
}

}  // namespace

std::unique_ptr<Execution> execute_in_chunks(Means means, Batch batch, std::unique_ptr<Chunks> chunks,
                                             uint32_t first_sequence) {
  return std::make_unique<ChunkedExecution>(std::move(means), std::move(batch), std::move(chunks), first_sequence);
}

}  // namespace hvd::staged
