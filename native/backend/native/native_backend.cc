#include "backend/native/native_backend.h"

#include <algorithm>
#include <numeric>

#include "backend/native/adasum_execution.h"
#include "backend/native/direct_execution.h"
#include "backend/native/plan_execution.h"
#include "reduce/adasum.h"

namespace hvd {
namespace {

constexpr int64_t kMostFrameBytes = int64_t{64} << 10;
constexpr int64_t kLeastFrameBytes = int64_t{8} << 10;
constexpr int64_t kFramesPerShare = 4;  // so that sending, reducing and receiving overlap in mid-sized tensors too

int64_t total_of(const std::vector<int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

int64_t total_of(const std::vector<Extent>& extents) {
  return std::accumulate(extents.begin(), extents.end(), int64_t{0},
                         [](int64_t sum, const Extent& extent) { return sum + extent.count; });
}

}  // namespace

// Elements in a frame.
int64_t NativeBackend::chunk_of(DType dtype, int64_t elements_per_rank) const {
  const auto element_bytes = static_cast<int64_t>(size_of(dtype));
  const int64_t most = std::min(kMostFrameBytes, transport_.max_frame_bytes());
  const int64_t frame = std::clamp(elements_per_rank * element_bytes / kFramesPerShare, kLeastFrameBytes, most);
  return std::max<int64_t>(frame / element_bytes, 1);
}

PlanContext NativeBackend::context_of(const Batch& batch, int64_t elements_per_rank) const {
  return {batch.set_rank, static_cast<int>(batch.members.size()), chunk_of(batch.dtype, elements_per_rank)};
}

// One hop in place of two is worth reducing everything on every rank while a hop costs more than that.
constexpr int64_t kMostExchangedBytes = int64_t{128} << 10;

// Inside a host everybody reaches everybody at memory speed, and two hops beat many. Between hosts the ring keeps each
// rank to two neighbours. But a ring starts to reduce an element at the owner of its share, which follows from where
// in a batch the element lies: only where all are reduced in the order of the ranks, as in kDirect and kExchange, does
// it not matter to the result what travels together.
Algorithm NativeBackend::algorithm_for(const Batch& batch) const {
  if (deterministic_) return Algorithm::kDirect;
  const bool local = transport_.all_local();
  return local || batch.members.size() <= 2 ? Algorithm::kDirect : Algorithm::kRing;
}

std::unique_ptr<Execution> NativeBackend::execute(Batch batch, Plan plan) {
  return std::make_unique<PlanExecution>(std::move(batch), std::move(plan), transport_);
}

std::unique_ptr<Execution> NativeBackend::allreduce(Batch batch) {
  if (!batch.reachable.empty()) return std::make_unique<DirectExecution>(std::move(batch), transport_);
  const int64_t count = total_of(batch.inputs);
  const auto size = static_cast<int64_t>(batch.members.size());
  const int64_t received = count * (size - 1) * static_cast<int64_t>(size_of(batch.dtype));
  const bool exchange = received <= kMostExchangedBytes;
  Plan plan = exchange ? plan_allreduce(context_of(batch, count), Algorithm::kExchange, count)
                       : plan_allreduce(context_of(batch, count / size), algorithm_for(batch), count);
  return execute(std::move(batch), std::move(plan));
}

std::unique_ptr<Execution> NativeBackend::adasum(Batch batch) {
  const int64_t chunk = chunk_of(adasum_dtype(batch.dtype), total_of(batch.inputs));
  return std::make_unique<AdasumExecution>(std::move(batch), chunk, transport_);
}

std::unique_ptr<Execution> NativeBackend::reducescatter(Batch batch, const std::vector<int64_t>& counts) {
  Plan plan = plan_reducescatter(context_of(batch, counts.front()), algorithm_for(batch), counts);
  return execute(std::move(batch), std::move(plan));
}

std::unique_ptr<Execution> NativeBackend::allgather(Batch batch, const std::vector<int64_t>& counts) {
  const int64_t mean = total_of(counts) / static_cast<int64_t>(counts.size());
  Plan plan = plan_allgather(context_of(batch, mean), algorithm_for(batch), counts);
  return execute(std::move(batch), std::move(plan));
}

std::unique_ptr<Execution> NativeBackend::broadcast(Batch batch, int root_set_rank) {
  const int64_t count = total_of(batch.inputs);
  Plan plan = plan_broadcast(context_of(batch, count), root_set_rank, count);
  return execute(std::move(batch), std::move(plan));
}

std::unique_ptr<Execution> NativeBackend::alltoall(Batch batch, const std::vector<std::vector<int64_t>>& counts) {
  int64_t most = 0;
  for (const auto& row : counts) most = std::max(most, *std::max_element(row.begin(), row.end()));
  Plan plan = plan_alltoall(context_of(batch, most), counts);
  return execute(std::move(batch), std::move(plan));
}

}  // namespace hvd
