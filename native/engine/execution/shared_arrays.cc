#include "engine/execution/shared_arrays.h"

#include <algorithm>

namespace hvd {

void SharedArrays::make(Operation& operation) {
  const int64_t bytes = operation.spec.ranks.front();
  const size_t offset = next_offset_;
  next_offset_ += (static_cast<size_t>(bytes) + kRoomAlignment - 1) / kRoomAlignment * kRoomAlignment;
  std::erase_if(regions_, [](const auto& region) { return region.expired(); });
  if (job_.size > 1 && transport_.all_local()) {
    try {
      const std::shared_ptr<SharedRegion> region = transport_.map_region(offset, static_cast<size_t>(bytes));
      regions_.push_back(region);
      operation.result.arrays.push_back({DType::kUInt8, {bytes}, std::shared_ptr<std::byte[]>(region, region->own())});
      return;
    } catch (const Error& error) {
      job_.log(LogLevel::kInfo, operation.spec.name + ": " + job_.name_of_rank(job_.rank) +
                                    " takes private memory instead of shared memory: " + error.what());
    }
  }
  operation.result.arrays.push_back(make_array(DType::kUInt8, {bytes}));
}

void SharedArrays::find_place(Operation& operation) const {
  const RequestSpec& spec = operation.spec;
  const bool may = spec.kind == OpKind::kAllreduce && spec.reduce_op != ReduceOp::kAdasum && !spec.weighted;
  if (!may || operation.gpu.device != kCpuDevice || regions_.empty() || !used_) return;
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

void SharedArrays::add_reachable(const Operation& operation, const Extent& input, Batch& batch) {
  if (operation.state.region == nullptr) {
    throw Error(ErrorKind::kInternal, "the coordinator takes " + operation.spec.name + " for one in shared memory");
  }
  batch.reachable.resize(batch.members.size());
  const std::ptrdiff_t at = input.data - operation.state.region->own();
  for (size_t member = 0; member < batch.members.size(); ++member) {
    batch.reachable[member].push_back({operation.state.region->data(batch.members[member]) + at, input.count});
  }
}

void SharedArrays::detach(const Operation& operation) const {
  if (operation.state.place == 0) return;
  try {
    operation.state.region->detach();
  } catch (const Error& error) {
    job_.log(LogLevel::kWarning, "other ranks may still change " + operation.spec.name + ": " + error.what());
  }
}

}  // namespace hvd
