// Adasum by pairs of ranks, in the rounds of adasum_rounds(). Each pair exchanges over MPI what it combines.
#include <algorithm>
#include <utility>

#include "backend/mpi/packing.h"
#include "backend/mpi/tasks.h"
#include "backend/native/adasum_execution.h"
#include "reduce/adasum.h"

namespace hvd::mpi {
namespace {

using Kind = AdasumRound::Kind;

class AdasumTask final : public Task {
 public:
  AdasumTask(Batch batch, SharedComm comm)
      : batch_(std::move(batch)),
        comm_(std::move(comm)),
        dtype_(adasum_dtype(batch_.dtype)),
        count_(total_of(batch_.inputs)),
        rounds_(adasum_rounds(batch_.set_rank, static_cast<int>(batch_.members.size()))) {}

  bool go_on(Context& context, std::vector<Request>& requests) override {
    if (!started_) {
      started_ = true;
      const size_t bytes = static_cast<size_t>(count_) * size_of(dtype_);
      value_ = context.staging.take(bytes);
      received_ = context.staging.take(bytes);
      pack(batch_, value_.data());
    } else {
      end_round(rounds_[next_round_++]);
    }
    if (next_round_ < rounds_.size()) {
      start_round(context, rounds_[next_round_], requests);
      return true;
    }
    unpack(batch_, value_.data());
    context.staging.give_back(std::move(value_));
    context.staging.give_back(std::move(received_));
    return false;
  }

 private:
  // Between two ranks each direction is used in one round only, so rounds need no tags of their own.
  void start_round(Context& context, const AdasumRound& round, std::vector<Request>& requests) {
    const Datatype datatype = dtype_ == DType::kFloat64 ? kDouble : kFloat;
    const int tag = static_cast<int>(batch_.sequence % kLeastTagUpperBound);
    if (round.kind != Kind::kGive) {
      std::byte* into = round.kind == Kind::kReplace ? value_.data() : received_.data();
      Request& request = requests.emplace_back(kRequestNull);
      context.check(context.functions.irecv(into, count_, datatype, round.partner, tag, comm_->get(), &request),
                    "MPI_Irecv");
    }
    if (!gives(round)) return;
    Request& request = requests.emplace_back(kRequestNull);
    context.check(context.functions.isend(value_.data(), count_, datatype, round.partner, tag, comm_->get(), &request),
                  "MPI_Isend");
  }

  [[nodiscard]] static bool gives(const AdasumRound& round) {
    return round.kind == Kind::kGive || round.kind == Kind::kExchange;
  }

  // The lower rank's values first, so that both ranks get the same bits.
  void end_round(const AdasumRound& round) {
    if (round.kind != Kind::kTake && round.kind != Kind::kExchange) return;
    size_t offset = 0;
    for (const Extent& tensor : batch_.inputs) {
      std::byte* value = value_.data() + offset;
      const std::byte* lower = value;
      const std::byte* upper = received_.data() + offset;
      if (round.partner < batch_.set_rank) std::swap(lower, upper);
      adasum(dtype_, value, lower, upper, static_cast<size_t>(tensor.count));
      offset += static_cast<size_t>(tensor.count) * size_of(dtype_);
    }
  }

  Batch batch_;
  SharedComm comm_;
  DType dtype_;  // of values between rounds
  int64_t count_;
  std::vector<AdasumRound> rounds_;
  size_t next_round_ = 0;
  bool started_ = false;
  Staging value_;
  Staging received_;
};

}  // namespace

std::unique_ptr<Task> make_adasum(Batch batch, SharedComm comm) {
  return std::make_unique<AdasumTask>(std::move(batch), std::move(comm));
}

}  // namespace hvd::mpi
