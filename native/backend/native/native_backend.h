// Collectives on CPU memory over the project's own transports.
#pragma once

#include "backend/backend.h"
#include "plan/cost.h"
#include "plan/plan.h"
#include "transport/transport.h"

namespace hvd {

class NativeBackend final : public Backend {
 public:
  // `deterministic`: an element's result depends on nothing but what the ranks give for it. The same on all ranks.
  explicit NativeBackend(Transport& transport, bool deterministic = false, PlanOptions plans = {})
      : transport_(transport), deterministic_(deterministic), plans_(std::move(plans)) {}

  [[nodiscard]] bool reduces_in_shared_memory() const override { return true; }
  std::unique_ptr<Execution> execute(Collective collective, Batch batch) override;
  // From the first to the second of two members, each of which gives its end: `inputs` or `outputs`. Counted by itself:
  // the sequence number may be that of a batch of all members.
  [[nodiscard]] std::unique_ptr<Execution> transfer(Batch batch) const;

 private:
  [[nodiscard]] int64_t chunk_of(DType dtype, int64_t elements_per_rank, bool in_host) const;
  [[nodiscard]] PlanContext context_of(const Batch& batch, int64_t elements_per_rank) const;
  [[nodiscard]] Choice choose_for_allreduce(const PlanContext& context, const Batch& batch, int64_t count) const;
  [[nodiscard]] bool must_be_in_rank_order(const Batch& batch) const;
  [[nodiscard]] Algorithm choose_for_gather(const PlanContext& context, const Batch& batch, int64_t count) const;
  [[nodiscard]] std::unique_ptr<Execution> quantized_allreduce(Batch& batch) const;
  [[nodiscard]] Plan plan_for_allreduce(const Batch& batch) const;
  [[nodiscard]] Plan plan_for_blocks(Collective collective, const Batch& batch) const;
  [[nodiscard]] Plan plan_for_broadcast(const Batch& batch) const;
  [[nodiscard]] Plan plan_for_alltoall(const Batch& batch) const;

  Transport& transport_;
  bool deterministic_;
  PlanOptions plans_;
};

}  // namespace hvd
