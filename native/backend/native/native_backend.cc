#include "backend/native/native_backend.h"

#include <algorithm>
#include <numeric>

#include "backend/native/adasum_execution.h"
#include "backend/native/direct_execution.h"
#include "backend/native/plan_execution.h"
#include "backend/native/quantized_execution.h"
#include "base/error.h"
#include "base/quantization.h"
#include "reduce/adasum.h"

namespace hvd {
namespace {

// How the share of a rank is cut into frames: into a few, so that sending, reducing and receiving overlap in mid-sized
// tensors too. Ranks of a host may share cores, and then each frame may cost a switch: they get fewer and longer ones
// (docs/decisions/0075-one-payload-for-several-ranks.md has the measurements).
struct FrameSizes {
  int64_t least_bytes;
  int64_t most_bytes;
  int64_t frames_per_share;
};
constexpr FrameSizes kInHost{.least_bytes = 32 << 10, .most_bytes = 128 << 10, .frames_per_share = 2};
constexpr FrameSizes kBetweenHosts{.least_bytes = 8 << 10, .most_bytes = 64 << 10, .frames_per_share = 4};

int64_t total_of(const std::vector<int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

int64_t total_of(const std::vector<Extent>& extents) {
  return std::accumulate(extents.begin(), extents.end(), int64_t{0},
                         [](int64_t sum, const Extent& extent) { return sum + extent.count; });
}

bool is_on_one_host(const PlanContext& context) {
  const auto differs = [&](int host) { return host != context.hosts.front(); };
  return std::none_of(context.hosts.begin(), context.hosts.end(), differs);
}

// Of a quantized allreduce, unless the tensors have fewer.
constexpr int64_t kLeastBlocksInFrame = 8;

// Adds a plan for the elements from `begin` on.
void append(Plan& plan, Plan part, int64_t begin) {
  for (Lane& lane : part.lanes) {
    lane.number = static_cast<uint32_t>(plan.lanes.size());
    for (Step& step : lane.steps) {
      for (Range* range : {&step.range, &step.source}) *range = {range->begin + begin, range->end + begin};
    }
    plan.lanes.push_back(std::move(lane));
  }
}

// One hop in place of two is worth reducing everything on every rank while a hop costs more than that.
constexpr int64_t kMostExchangedBytes = int64_t{128} << 10;

}  // namespace

// Elements in a frame.
int64_t NativeBackend::chunk_of(DType dtype, int64_t elements_per_rank, bool in_host) const {
  const auto element_bytes = static_cast<int64_t>(size_of(dtype));
  const FrameSizes& sizes = in_host ? kInHost : kBetweenHosts;
  const int64_t most = std::min(sizes.most_bytes, transport_.max_frame_bytes());
  const int64_t frame = elements_per_rank * element_bytes / sizes.frames_per_share;
  return std::max<int64_t>(std::clamp(frame, sizes.least_bytes, most) / element_bytes, 1);
}

PlanContext NativeBackend::context_of(const Batch& batch, int64_t elements_per_rank) const {
  PlanContext context{.rank = batch.set_rank, .size = static_cast<int>(batch.members.size())};
  if (!transport_.all_local()) {
    for (const int member : batch.members) context.hosts.push_back(transport_.hosts()[static_cast<size_t>(member)]);
    if (is_on_one_host(context)) context.hosts.clear();
  }
  context.chunk = chunk_of(batch.dtype, elements_per_rank, context.hosts.empty());
  return context;
}

// Inside a host everybody reaches everybody at memory speed, and two hops beat many. Between hosts the cost model
// chooses. But some algorithms start to reduce an element where its place in the batch says: only where all are reduced
// in the order of the ranks, as in kDirect and kExchange, does it not matter to the result what travels together. There
// also one rank alone adds up an element, so that no sum of integers that are averaged need fit into their dtype.
Choice NativeBackend::choose_for_allreduce(const PlanContext& context, const Batch& batch, int64_t count) const {
  const auto element_bytes = static_cast<int64_t>(size_of(batch.dtype));
  const int64_t bytes = count * element_bytes;
  const bool in_rank_order = must_be_in_rank_order(batch);
  if (plans_.allreduce && (!in_rank_order || is_in_rank_order(*plans_.allreduce))) {
    const bool whole = *plans_.allreduce == Algorithm::kExchange || *plans_.allreduce == Algorithm::kDoubling;
    const int64_t chunk = chunk_of(batch.dtype, whole ? count : count / context.size, context.hosts.empty());
    return {.algorithm = *plans_.allreduce, .frame_bytes = chunk * element_bytes};
  }
  if (!context.hosts.empty()) {
    const int64_t most = std::min(kBetweenHosts.most_bytes, transport_.max_frame_bytes());
    return choose_allreduce(topology_of(context.hosts, plans_.costs), bytes, in_rank_order, most, plans_.costs);
  }
  const bool exchange = bytes * (context.size - 1) <= kMostExchangedBytes;
  const int64_t chunk = chunk_of(batch.dtype, exchange ? count : count / context.size, true);
  return {.algorithm = exchange ? Algorithm::kExchange : Algorithm::kDirect, .frame_bytes = chunk * element_bytes};
}

bool NativeBackend::must_be_in_rank_order(const Batch& batch) const {
  return deterministic_ || batch.averages_integers();
}

Algorithm NativeBackend::choose_for_gather(const PlanContext& context, const Batch& batch, int64_t count) const {
  if (context.hosts.empty()) return Algorithm::kDirect;
  const auto element_bytes = static_cast<int64_t>(size_of(batch.dtype));
  return choose_gather(topology_of(context.hosts, plans_.costs), count * element_bytes, context.chunk * element_bytes,
                       plans_.costs);
}

Plan NativeBackend::plan_for_allreduce(const Batch& batch) const {
  const int64_t count = total_of(batch.inputs);
  PlanContext context = context_of(batch, count);
  const Choice choice = choose_for_allreduce(context, batch, count);
  context.chunk = std::max<int64_t>(choice.frame_bytes / static_cast<int64_t>(size_of(batch.dtype)), 1);
  return plan_allreduce(context, choice.algorithm, count);
}

// Over blocks in place of elements. What a rank keeps of its errors depends on the shares that it leads: in
// deterministic mode each tensor is cut into shares by itself, so that these do not depend on what travels with it.
// Nothing if all values stay inside of a host, where nothing is quantized.
std::unique_ptr<Execution> NativeBackend::quantized_allreduce(Batch& batch) const {
  if (batch.quantization == Quantization::kNone) return nullptr;
  PlanContext context = context_of(batch, total_of(batch.inputs));
  if (context.hosts.empty()) return nullptr;
  const auto widest = static_cast<int64_t>(std::max(size_of(batch.dtype), sizeof(float)));
  const int64_t most = std::min(kQuantizedFrameBytes, transport_.max_frame_bytes_here()) / (kQuantizedBlock * widest);
  if (most == 0) throw Error(ErrorKind::kInternal, "the links are too narrow for a quantized block");
  std::vector<int64_t> parts;
  for (const Extent& input : batch.inputs) parts.push_back(num_quantized_blocks(input.count));
  if (!deterministic_) parts = {std::accumulate(parts.begin(), parts.end(), int64_t{0})};
  Plan plan;
  int64_t first = 0;
  const int64_t frames = quantized_frames_per_share(topology_of(context.hosts, plans_.costs).hosts());
  for (const int64_t blocks : parts) {
    context.chunk = std::clamp(blocks / context.size / frames, std::min(kLeastBlocksInFrame, most), most);
    append(plan, plan_allreduce(context, Algorithm::kStars, blocks), first);
    first += blocks;
  }
  return std::make_unique<QuantizedExecution>(std::move(batch), std::move(plan), context.hosts, transport_);
}

Plan NativeBackend::plan_for_blocks(Collective collective, const Batch& batch) const {
  const int64_t total = total_of(batch.counts);
  const bool reduced = reduces(collective);
  const int64_t average = total / static_cast<int64_t>(batch.counts.size());
  const PlanContext context = context_of(batch, reduced ? batch.counts.front() : average);
  const Algorithm algorithm =
      reduced && must_be_in_rank_order(batch) ? Algorithm::kDirect : choose_for_gather(context, batch, total);
  return reduced ? plan_reducescatter(context, algorithm, batch.counts)
                 : plan_allgather(context, algorithm, batch.counts);
}

Plan NativeBackend::plan_for_broadcast(const Batch& batch) const {
  const int64_t count = total_of(batch.inputs);
  const PlanContext context = context_of(batch, count);
  const auto element_bytes = static_cast<int64_t>(size_of(batch.dtype));
  Spread spread = Spread::kTree;
  if (!context.hosts.empty()) {
    spread = choose_broadcast(topology_of(context.hosts, plans_.costs), count * element_bytes,
                              context.chunk * element_bytes, plans_.costs);
  }
  return plan_broadcast(context, batch.root, count, spread);
}

Plan NativeBackend::plan_for_alltoall(const Batch& batch) const {
  int64_t most = 0;
  for (const auto& row : batch.splits) most = std::max(most, *std::max_element(row.begin(), row.end()));
  return plan_alltoall(context_of(batch, most), batch.splits);
}

std::unique_ptr<Execution> NativeBackend::transfer(Batch batch) const {
  const int64_t count = total_of(batch.set_rank == 0 ? batch.inputs : batch.outputs);
  const int64_t chunk = chunk_of(batch.dtype, count, transport_.all_local());
  Plan plan = plan_transfer({.rank = batch.set_rank, .size = 2, .chunk = chunk}, count);
  return std::make_unique<PlanExecution>(std::move(batch), std::move(plan), transport_);
}

std::unique_ptr<Execution> NativeBackend::execute(Collective collective, Batch batch) {
  Plan plan;
  switch (collective) {
    case Collective::kAllreduce:
      if (!batch.reachable.empty()) return std::make_unique<DirectExecution>(std::move(batch), transport_);
      if (auto quantized = quantized_allreduce(batch)) return quantized;
      plan = plan_for_allreduce(batch);
      break;
    case Collective::kAdasum: {
      const int64_t chunk = chunk_of(adasum_dtype(batch.dtype), total_of(batch.inputs), transport_.all_local());
      return std::make_unique<AdasumExecution>(std::move(batch), chunk, transport_);
    }
    case Collective::kReducescatter:
    case Collective::kAllgather:
      plan = plan_for_blocks(collective, batch);
      break;
    case Collective::kBroadcast:
      plan = plan_for_broadcast(batch);
      break;
    case Collective::kAlltoall:
      plan = plan_for_alltoall(batch);
      break;
  }
  return std::make_unique<PlanExecution>(std::move(batch), std::move(plan), transport_);
}

}  // namespace hvd
