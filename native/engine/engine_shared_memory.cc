// Arrays that all ranks of a host see. They are made by agreement, so that each rank has its own at the same offset.
//
// An allreduce in place whose values lie at the same place on all members needs no copies. Each member says with its
// announcement where its values lie; the coordinator's answer tells whether they are the same.
#include <algorithm>

#include "engine/engine.h"

namespace hvd {

// With queue_mutex_ held.
void Engine::check_shared_memory(const Operation& operation) const {
  if (operation.request.process_set != 0) {
    throw Error(ErrorKind::kUsage, operation.spec.name + ": memory is shared by all ranks of the job");
  }
  if (operation.spec.ranks.size() != 1 || operation.spec.ranks.front() <= 0) {
    throw Error(ErrorKind::kUsage, operation.spec.name + ": needs a positive number of bytes");
  }
}

// Memory of this rank alone does too, only slower: then an allreduce takes the way that it always has.
void Engine::share_memory(Operation& operation) {
  const int64_t bytes = operation.spec.ranks.front();
  const size_t offset = next_region_offset_;
  next_region_offset_ += (static_cast<size_t>(bytes) + kRoomAlignment - 1) / kRoomAlignment * kRoomAlignment;
  std::erase_if(regions_, [](const auto& region) { return region.expired(); });
  if (size_ > 1 && transport_->all_local()) {
    try {
      const std::shared_ptr<SharedRegion> region = transport_->map_region(offset, static_cast<size_t>(bytes));
      regions_.push_back(region);
      operation.result.arrays.push_back({DType::kUInt8, {bytes}, std::shared_ptr<std::byte[]>(region, region->own())});
      return;
    } catch (const Error& error) {
      options_.log(LogLevel::kInfo, operation.spec.name + ": " + name_of_rank(rank_) +
                                        " takes private memory instead of shared memory: " + error.what());
    }
  }
  operation.result.arrays.push_back(make_array(DType::kUInt8, {bytes}));
}

void Engine::find_place(Operation& operation) {
  const RequestSpec& spec = operation.spec;
  const bool may = spec.kind == OpKind::kAllreduce && spec.reduce_op != ReduceOp::kAdasum && !spec.weighted;
  if (!may || operation.gpu.device != kCpuDevice || regions_.empty() || !backend_->reduces_in_shared_memory()) return;
  std::shared_ptr<SharedRegion> found;
  const Buffer& first = operation.request.inputs.front();
  for (const auto& candidate : regions_) {
    found = candidate.lock();
    if (found != nullptr && found->contains(first.data, first.bytes())) break;
    found.reset();
  }
  if (found == nullptr) return;
  uint64_t place = found->offset() + 1;
  for (size_t i = 0; i < operation.request.inputs.size(); ++i) {
    const Buffer& input = operation.request.inputs[i];
    if (input.data != operation.request.outputs[i].data || !found->contains(input.data, input.bytes())) return;
    place = (place ^ static_cast<uint64_t>(input.data - found->own())) * 0x9e3779b97f4a7c15ULL;
  }
  operation.state.place = place | 1;
  operation.state.region = std::move(found);
}

void Engine::add_reachable(const Operation& operation, const Extent& input, Batch& batch) {
  if (operation.state.region == nullptr) {
    throw Error(ErrorKind::kInternal, "the coordinator takes " + operation.spec.name + " for one in shared memory");
  }
  batch.reachable.resize(batch.members.size());
  const std::ptrdiff_t at = input.data - operation.state.region->own();
  for (size_t member = 0; member < batch.members.size(); ++member) {
    batch.reachable[member].push_back({operation.state.region->data(batch.members[member]) + at, input.count});
  }
}

// Peers that have not heard of the failure yet may still write into memory whose operation is about to fail here.
void Engine::detach_regions() {
  const auto detach = [this](const Operation& operation) {
    if (operation.state.place == 0) return;
    try {
      operation.state.region->detach();
    } catch (const Error& error) {
      options_.log(LogLevel::kWarning, "other ranks may still change " + operation.spec.name + ": " + error.what());
    }
  };
  for (const Active& active : active_) {
    for (const auto& operation : active.operations) detach(*operation);
  }
  for (const auto& [id, set] : sets_) {
    for (const auto& [name, operation] : set->pending) detach(*operation);
  }
}

}  // namespace hvd
