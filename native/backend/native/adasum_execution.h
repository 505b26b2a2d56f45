// Adasum over a binary tree of the set's ranks, without ever waiting.
//
// In round k the ranks r and r xor 2^k exchange all of their values, and both combine them, the lower rank's first, so
// that they end with the same bits. Ranks from the largest power of two on give their values to rank r - power first,
// and get the result last. Each tensor is combined by itself, however many travel together.
//
// Halving the vectors in each round would move less, but then the products of a tensor have to be summed over ranks in
// each round too: one more exchange to wait for, in rounds of which there are only log2(size).
#pragma once

#include <memory>
#include <vector>

#include "backend/backend.h"
#include "backend/native/plan_execution.h"

namespace hvd {

// What a rank does with its value, or with the partner's, in a round.
struct AdasumRound {
  enum class Kind : uint8_t { kGive, kTake, kExchange, kReplace };

  int partner = 0;  // set rank
  Kind kind = Kind::kExchange;
  bool operator==(const AdasumRound&) const = default;
};

// The rounds of a set rank, in order. No two have the same partner and the same direction.
[[nodiscard]] std::vector<AdasumRound> adasum_rounds(int rank, int size);

class AdasumExecution final : public Execution {
 public:
  // Each extent of the batch is a tensor of floating point; `chunk`: elements of adasum_dtype() in a frame at most, the
  // same on all members. Throws Error(kInternal) for another dtype.
  AdasumExecution(Batch batch, int64_t chunk, Transport& transport);

  bool advance() override;
  [[nodiscard]] bool done() const override { return done_; }
  // Always the partner of the round at hand: who waits for a rank further away finds out from those between.
  [[nodiscard]] bool waits_for(int rank) override { return exchange_ != nullptr && exchange_->waits_for(rank); }

 private:
  [[nodiscard]] std::vector<Extent> cut_like_outputs(std::byte* memory) const;
  void start_round(const AdasumRound& round);
  void end_round(const AdasumRound& round);
  void finish();

  Batch batch_;
  DType dtype_;    // of values between rounds
  int64_t count_;  // elements of all tensors
  int64_t chunk_;
  Transport& transport_;
  std::vector<AdasumRound> rounds_;
  size_t next_round_ = 0;
  bool done_ = false;

  std::unique_ptr<std::byte[]> value_memory_;     // only if values between rounds have another dtype than the outputs
  std::unique_ptr<std::byte[]> received_memory_;  // only if there is something to combine
  std::vector<Extent> value_;
  std::vector<Extent> received_;
  std::unique_ptr<PlanExecution> exchange_;  // of the round at hand
};

}  // namespace hvd
