#include "backend/native/adasum_execution.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "reduce/adasum.h"

namespace hvd {
namespace {

using Kind = AdasumRound::Kind;

bool combines(const AdasumRound& round) { return round.kind == Kind::kTake || round.kind == Kind::kExchange; }

}  // namespace

std::vector<AdasumRound> adasum_rounds(int rank, int size) {
  const int power = static_cast<int>(std::bit_floor(static_cast<unsigned>(size)));
  if (rank >= power) return {{rank - power, Kind::kGive}, {rank - power, Kind::kReplace}};
  std::vector<AdasumRound> rounds;
  const bool has_extra = rank + power < size;
  if (has_extra) rounds.push_back({rank + power, Kind::kTake});
  for (int distance = 1; distance < power; distance *= 2) rounds.push_back({rank ^ distance, Kind::kExchange});
  if (has_extra) rounds.push_back({rank + power, Kind::kGive});
  return rounds;
}

AdasumExecution::AdasumExecution(Batch batch, int64_t chunk, Transport& transport)
    : batch_(std::move(batch)),
      dtype_(adasum_dtype(batch_.dtype)),
      count_(LogicalVector(batch_.outputs, size_of(dtype_)).count()),
      chunk_(chunk),
      transport_(transport),
      rounds_(adasum_rounds(batch_.set_rank, static_cast<int>(batch_.members.size()))),
      value_(batch_.outputs) {
  const size_t bytes = static_cast<size_t>(count_) * size_of(dtype_);
  if (dtype_ != batch_.dtype) {
    value_memory_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
    value_ = cut_like_outputs(value_memory_.get());
  }
  if (std::any_of(rounds_.begin(), rounds_.end(), combines)) {
    received_memory_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
    received_ = cut_like_outputs(received_memory_.get());
  }
  for (size_t i = 0; i < value_.size(); ++i) {
    const Extent& input = batch_.inputs[i];
    to_adasum(batch_.dtype, value_[i].data, input.data, static_cast<size_t>(input.count), batch_.prescale);
  }
}

std::vector<Extent> AdasumExecution::cut_like_outputs(std::byte* memory) const {
  std::vector<Extent> extents;
  extents.reserve(batch_.outputs.size());
  for (const Extent& output : batch_.outputs) {
    extents.push_back({memory, output.count});
    memory += static_cast<size_t>(output.count) * size_of(dtype_);
  }
  return extents;
}

bool AdasumExecution::advance() {
  bool progressed = false;
  while (!done_) {
    if (next_round_ == rounds_.size()) {
      finish();
      return true;
    }
    const AdasumRound& round = rounds_[next_round_];
    if (exchange_ == nullptr) start_round(round);
    progressed = exchange_->advance() || progressed;
    if (!exchange_->done()) return progressed;
    end_round(round);
    progressed = true;
  }
  return progressed;
}

// All rounds share the batch's sequence number: between two ranks each direction is used in one round only, so a frame
// that comes early cannot be taken for one of another round.
void AdasumExecution::start_round(const AdasumRound& round) {
  const bool is_lower = batch_.set_rank < round.partner;
  const auto [lower, upper] = std::minmax(batch_.set_rank, round.partner);
  Batch pair;
  pair.set = batch_.set;
  pair.sequence = batch_.sequence;
  pair.members = {batch_.members[static_cast<size_t>(lower)], batch_.members[static_cast<size_t>(upper)]};
  pair.set_rank = is_lower ? 0 : 1;
  pair.dtype = dtype_;
  pair.inputs = value_;
  pair.outputs = round.kind == Kind::kReplace ? value_ : received_;

  const bool sends = round.kind == Kind::kGive || round.kind == Kind::kExchange;
  const int64_t sent = sends ? count_ : 0;
  const int64_t received = round.kind == Kind::kGive ? 0 : count_;
  const int64_t rising = is_lower ? sent : received;
  const int64_t falling = is_lower ? received : sent;
  Plan plan = plan_alltoall({pair.set_rank, 2, chunk_}, {{0, rising}, {falling, 0}});
  exchange_ = std::make_unique<PlanExecution>(std::move(pair), std::move(plan), transport_);
}

void AdasumExecution::end_round(const AdasumRound& round) {
  exchange_.reset();
  ++next_round_;
  if (!combines(round)) return;
  for (size_t i = 0; i < value_.size(); ++i) {
    std::byte* lower = value_[i].data;
    std::byte* upper = received_[i].data;
    if (round.partner < batch_.set_rank) std::swap(lower, upper);
    adasum(dtype_, value_[i].data, lower, upper, static_cast<size_t>(value_[i].count));
  }
}

void AdasumExecution::finish() {
  for (size_t i = 0; i < value_.size(); ++i) {
    const Extent& output = batch_.outputs[i];
    from_adasum(batch_.dtype, output.data, value_[i].data, static_cast<size_t>(output.count), batch_.postscale);
  }
  done_ = true;
}

}  // namespace hvd
