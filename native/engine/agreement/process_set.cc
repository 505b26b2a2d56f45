#include "engine/agreement/process_set.h"

#include <algorithm>

#include "engine/submission/check.h"
#include "reduce/kernels.h"

namespace hvd {
namespace {

// The values of a small allreduce, one tensor after the other; prescaled, unless the coordinator does that together
// with the weights.
Bytes payload_of(const Operation& operation) {
  const double factor = operation.spec.weighted ? 1.0 : operation.spec.prescale;
  Bytes payload;
  payload.reserve(operation.spec.total_bytes());
  for (const Buffer& input : operation.request.inputs) {
    const size_t offset = payload.size();
    payload.insert(payload.end(), input.data, input.data + input.bytes());
    if (factor == 1.0) continue;
    std::byte* values = payload.data() + offset;
    scale(input.dtype, values, values, static_cast<size_t>(input.count()), factor);
  }
  return payload;
}

// A script has as many call sites as lines; generated code must not fill the memory of the coordinator.
constexpr size_t kMostCallSites = 65536;

}  // namespace

Announcement ProcessSet::announcement_of(Operation& operation) {
  Announcement announcement;
  announcement.digest = operation.state.digest;
  announcement.weight = operation.request.weight.value_or(1.0);
  announcement.priority = operation.request.priority;
  announcement.device = operation.gpu.device;
  announcement.place = operation.state.place;
  add_call_site(operation.request.call_site, announcement);
  const auto known = known_.find(operation.spec.name);
  announcement.full = known == known_.end() || known->second.digest != operation.state.digest;
  if (announcement.full) {
    announcement.spec = operation.spec;
    operation.state.announced_id.reset();
  } else {
    announcement.id = known->second.id;
    operation.state.announced_id = announcement.id;
  }
  announcement.expected = operation.state.expected;
  if (operation.spec.kind == OpKind::kAllgather) {
    for (const Buffer& input : operation.request.inputs) announcement.extents.push_back(input.shape.front());
  } else if (operation.spec.kind == OpKind::kAlltoall) {
    announcement.extents = operation.state.splits;
  } else if (operation.spec.kind == OpKind::kSend) {
    if (may_be_sent_with_announcement(operation.spec)) announcement.payload = payload_of(operation);
  } else if (operation.request.waits_next && may_travel_with_announcement(operation.spec, size(), is_on_one_host)) {
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
  if (!ref.by_id && ref.new_id >= 0) learn(ref.name, static_cast<uint32_t>(ref.new_id), operation->state.digest);
  return operation;
}

void ProcessSet::add_call_site(const std::string& call_site, Announcement& announcement) {
  if (call_site.empty()) return;
  const auto found = sites_.find(call_site);
  if (found != sites_.end()) {
    announcement.site = found->second;
  } else if (sites_.size() < kMostCallSites) {
    announcement.site = static_cast<uint32_t>(sites_.size()) + 1;
    announcement.new_site = call_site;
    sites_.emplace(call_site, announcement.site);
  }
}

std::shared_ptr<Operation> ProcessSet::stand_in(const NameRef& ref) {
  if (ref.spec.size() != 1) {
    throw Error(ErrorKind::kInternal, "the coordinator did not say what a rank that has joined takes part in");
  }
  check_received(ref.spec.front(), "the coordinator");
  auto operation = std::make_shared<Operation>();
  operation->spec = ref.spec.front();
  operation->state.digest = operation->spec.digest();
  operation->request.process_set = id;
  operation->state.set_rank = set_rank;
  operation->request.weight = 0.0;
  operation->state.stands_in = true;
  if (!ref.by_id && ref.new_id >= 0) learn(ref.name, static_cast<uint32_t>(ref.new_id), operation->state.digest);
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
