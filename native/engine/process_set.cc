#include "engine/process_set.h"

#include <algorithm>

#include "reduce/kernels.h"

namespace hvd {
namespace {

// The values of a small allreduce, prescaled, one tensor after the other.
Bytes payload_of(const Operation& operation) {
  size_t total = 0;
  for (const Buffer& input : operation.inputs) total += input.bytes();
  Bytes payload(total);
  size_t offset = 0;
  for (const Buffer& input : operation.inputs) {
    if (input.bytes() == 0) continue;
    scale(input.dtype, payload.data() + offset, input.data, static_cast<size_t>(input.count()),
          operation.spec.prescale);
    offset += input.bytes();
  }
  return payload;
}

}  // namespace

std::optional<int> ProcessSet::set_rank_of(int rank) const {
  const auto found = std::find(members.begin(), members.end(), rank);
  if (found == members.end()) return std::nullopt;
  return static_cast<int>(found - members.begin());
}

Announcement ProcessSet::announcement_of(Operation& operation) const {
  Announcement announcement;
  announcement.digest = operation.digest;
  const auto known = known_.find(operation.spec.name);
  announcement.full = known == known_.end() || known->second.digest != operation.digest;
  if (announcement.full) {
    announcement.spec = operation.spec;
    operation.announced_id.reset();
  } else {
    announcement.id = known->second.id;
    operation.announced_id = announcement.id;
  }
  if (operation.spec.kind == OpKind::kAllgather) {
    for (const Buffer& input : operation.inputs) announcement.extents.push_back(input.shape.front());
  } else if (operation.spec.kind == OpKind::kAlltoall) {
    announcement.extents = operation.splits;
  } else if (operation.waited_for && may_travel_with_announcement(operation.spec, size())) {
    announcement.payload = payload_of(operation);
  }
  return announcement;
}

std::shared_ptr<Operation> ProcessSet::take(const NameRef& ref) {
  if (ref.by_id && ref.id >= names_by_id_.size()) {
    throw Error(ErrorKind::kInternal, "the coordinator named an operation by a number that it never gave");
  }
  const std::string& name = ref.by_id ? names_by_id_[ref.id] : ref.name;
  const auto found = pending.find(name);
  if (found == pending.end()) {
    throw Error(ErrorKind::kInternal, "the coordinator answered " + name + ", which this rank has not submitted");
  }
  std::shared_ptr<Operation> operation = std::move(found->second);
  pending.erase(found);
  if (!ref.by_id && ref.new_id >= 0) learn(ref.name, static_cast<uint32_t>(ref.new_id), operation->digest);
  return operation;
}

void ProcessSet::learn(const std::string& name, uint32_t number, uint64_t digest) {
  if (number > names_by_id_.size()) {
    throw Error(ErrorKind::kInternal, "the coordinator skipped a number for a name");
  }
  if (number == names_by_id_.size()) names_by_id_.emplace_back();
  std::string& holder = names_by_id_[number];
  if (!holder.empty() && holder != name) known_.erase(holder);
  holder = name;
  known_[name] = {number, digest};
}

}  // namespace hvd
