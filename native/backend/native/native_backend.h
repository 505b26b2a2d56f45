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
  std::unique_ptr<Execution> allreduce(Batch batch) override;
  std::unique_ptr<Execution> adasum(Batch batch) override;
  std::unique_ptr<Execution> reducescatter(Batch batch, const std::vector<int64_t>& counts) override;
  std::unique_ptr<Execution> allgather(Batch batch, const std::vector<int64_t>& counts) override;
  std::unique_ptr<Execution> broadcast(Batch batch, int root_set_rank) override;
  std::unique_ptr<Execution> alltoall(Batch batch, const std::vector<std::vector<int64_t>>& counts) override;

 private:
  [[nodiscard]] int64_t chunk_of(DType dtype, int64_t elements_per_rank) const;
  [[nodiscard]] PlanContext context_of(const Batch& batch, int64_t elements_per_rank) const;
  [[nodiscard]] Choice choose_for_allreduce(const PlanContext& context, const Batch& batch, int64_t count) const;
  [[nodiscard]] bool must_be_in_rank_order(const Batch& batch) const;
  [[nodiscard]] Algorithm choose_for_gather(const PlanContext& context, const Batch& batch, int64_t count) const;
  std::unique_ptr<Execution> execute(Batch batch, Plan plan);

  Transport& transport_;
  bool deterministic_;
  PlanOptions plans_;
};

}  // namespace hvd
