// What the coordinator answers once a name is ready: agreement, results, executions.
#include <algorithm>
#include <bit>
#include <cstring>
#include <map>
#include <numeric>
#include <sstream>
#include <tuple>
#include <utility>

#include "engine/agreement/fuser.h"
#include "engine/agreement/negotiator.h"
#include "engine/submission/check.h"
#include "reduce/kernels.h"

namespace hvd {
namespace {

// What differs first between two requests of one name, in the words of a message.
std::string first_difference(const RequestSpec& a, const RequestSpec& b) {
  if (a.tensors.size() != b.tensors.size()) return "numbers of tensors in the group";
  for (size_t i = 0; i < a.tensors.size(); ++i) {
    if (a.tensors[i].dtype != b.tensors[i].dtype) return "data types";
  }
  if (a.kind != b.kind) return "operations";
  if (a.on_gpu != b.on_gpu) return "kinds of devices";
  for (size_t i = 0; i < a.tensors.size(); ++i) {
    const Shape& left = a.tensors[i].shape;
    const Shape& right = b.tensors[i].shape;
    const bool skip_first = a.first_dimension_differs() && !left.empty() && !right.empty();
    const auto from = skip_first ? 1 : 0;
    if (!std::equal(left.begin() + from, left.end(), right.begin() + (right.empty() ? 0 : from), right.end())) {
      return "tensor shapes";
    }
  }
  if (a.prescale != b.prescale || a.postscale != b.postscale) return "prescale or postscale factors";
  if (a.reduce_op != b.reduce_op) return "reduction operations";
  if (a.quantization != b.quantization) return "compressions between hosts";
  if (a.weighted != b.weighted) return "uses of weight";
  if (a.root != b.root) return "root ranks";
  if (a.ranks != b.ranks) return a.kind == OpKind::kShareMemory ? "numbers of bytes" : "ranks";
  return "requests";
}

// Agreements of all ranks of the job that move no data.
bool changes_job(OpKind kind) {
  return kind == OpKind::kAddProcessSet || kind == OpKind::kRemoveProcessSet || kind == OpKind::kShareMemory;
}

uint64_t mix(uint64_t state, uint64_t word) { return (state ^ word) * 0x9e3779b97f4a7c15ULL; }

}  // namespace

const Negotiator::Slot& Negotiator::first_slot(const Entry& entry) const {
  return *std::find_if(entry.slots.begin(), entry.slots.end(), [](const Slot& slot) { return slot.announced; });
}

const RequestSpec& Negotiator::spec_of(const Entry& entry, const Slot& slot) const {
  return slot.spec != nullptr ? *slot.spec : entry.spec;
}

const std::string& Negotiator::site_of(size_t member, const Slot& slot) const { return sites_[member].at(slot.site); }

// All members announced the name or are absent: answer at once, or line it up for execution.
void Negotiator::take_ready(Entry& entry) {
  std::optional<Response> error = disagreement(entry);
  if (!error) error = missing_participant(entry);
  if (error) {
    answers_.push_back(std::move(*error));
    reset(entry);
    return;
  }
  const Slot& first = first_slot(entry);
  if (first.spec != nullptr) {
    entry.spec = *first.spec;
    entry.family = family_of(entry.spec);
  }
  entry.digest = first.digest;
  check_slots(entry);
  error = unexpected_rows(entry);
  if (error) {
    answers_.push_back(std::move(*error));
    reset(entry);
    return;
  }
  const OpKind kind = entry.spec.kind;
  const bool is_agreement = kind == OpKind::kBarrier || changes_job(kind);
  if (is_agreement || has_all_values(entry)) {
    answers_.push_back(result_of(entry));
    reset(entry);
  } else {
    entry.ready = true;
    ready_.push_back(&entry);
  }
}

std::optional<Response> Negotiator::disagreement(const Entry& entry) const {
  const Slot& first = first_slot(entry);
  const auto other = std::find_if(entry.slots.begin(), entry.slots.end(),
                                  [&](const Slot& slot) { return slot.announced && slot.digest != first.digest; });
  if (other == entry.slots.end()) return std::nullopt;
  return error_for(entry, ErrorKind::kMismatch,
                   "Mismatched " + first_difference(spec_of(entry, first), spec_of(entry, *other)) + " for " +
                       entry.name + ": all " + (spec_of(entry, first).by_members ? "its members" : "ranks") +
                       " must submit the same." + requests_of(entry));
}

// What the member announced; in full also where it sent the number of the name, with the rows of another time.
RequestSpec Negotiator::request_of(const Entry& entry, const Slot& slot) {
  if (slot.spec != nullptr) return *slot.spec;
  RequestSpec request = entry.spec;
  if (!request.first_dimension_differs() || !are_rows(slot.extents, 1)) return request;
  if (request.kind == OpKind::kAlltoall) {
    request.tensors.front().shape.front() = std::accumulate(slot.extents.begin(), slot.extents.end(), int64_t{0});
  } else if (slot.extents.size() == request.tensors.size()) {
    for (size_t i = 0; i < slot.extents.size(); ++i) request.tensors[i].shape.front() = slot.extents[i];
  }
  return request;
}

// One line for each different request, with the ranks that sent it.
std::string Negotiator::requests_of(const Entry& entry) const {
  std::map<std::string, std::vector<size_t>> members_by_request;
  for (size_t member = 0; member < entry.slots.size(); ++member) {
    const Slot& slot = entry.slots[member];
    if (!slot.announced) continue;
    members_by_request[request_of(entry, slot).describe(site_of(member, slot))].push_back(member);
  }
  std::ostringstream text;
  for (const auto& [request, members] : members_by_request) {
    text << "\n  ";
    for (size_t i = 0; i < members.size() && i < 8; ++i) text << (i == 0 ? "" : ", ") << member_names_[members[i]];
    if (members.size() > 8) text << " and " << members.size() - 8 << " more";
    text << " sent " << request;
  }
  return text.str();
}

// Whether the operation cannot be done with neutral values in the place of the members that have joined.
std::optional<Response> Negotiator::missing_participant(const Entry& entry) const {
  const RequestSpec& spec = spec_of(entry, first_slot(entry));
  double total_weight = 0.0;
  std::string absent;
  for (size_t member = 0; member < entry.slots.size(); ++member) {
    if (entry.slots[member].announced) {
      total_weight += entry.slots[member].weight;
      continue;
    }
    if (spec.on_gpu && device_of(entry, member) < 0) {
      return error_for(entry, ErrorKind::kMismatch,
                       entry.name + " failed: " + member_names_[member] +
                           " has joined without a GPU to take part with. Give its device to join()." +
                           requests_of(entry));
    }
    if (spec.kind == OpKind::kBroadcast && spec.root == global_rank(member)) {
      return error_for(entry, ErrorKind::kMismatch,
                       entry.name + " failed: its root, " + member_names_[member] +
                           ", has joined, so it has nothing to broadcast. Choose a root that joins last, or broadcast "
                           "before join()." +
                           requests_of(entry));
    }
    absent += (absent.empty() ? "" : ", ") + member_names_[member];
  }
  if (spec.weighted && !is_total_weight(total_weight)) {
    return error_for(entry, ErrorKind::kMismatch,
                     entry.name + " failed: the weights of all ranks sum up to " + std::to_string(total_weight) +
                         ", so there is no average." + requests_of(entry));
  }
  if (!changes_job(spec.kind) || spec.by_members || absent.empty()) return std::nullopt;
  return error_for(entry, ErrorKind::kMismatch,
                   entry.name + " failed: " + name_of(spec.kind) + " needs all ranks, but " + absent + " has joined." +
                       requests_of(entry));
}

Response Negotiator::error_for(const Entry& entry, ErrorKind kind, std::string message) const {
  Response response;
  response.kind = Response::Kind::kError;
  response.names.emplace_back().name = entry.name;
  response.error_kind = kind;
  response.message = std::move(message);
  return response;
}

// What members send beside the agreed request must have the lengths that follow from it.
void Negotiator::check_slots(const Entry& entry) const {
  const RequestSpec& spec = entry.spec;
  const size_t payload_bytes = spec.kind == OpKind::kAllreduce ? spec.total_bytes() : 0;
  const size_t num_extents = spec.kind == OpKind::kAllgather  ? spec.tensors.size()
                             : spec.kind == OpKind::kAlltoall ? entry.slots.size()
                                                              : 0;
  for (size_t member = 0; member < entry.slots.size(); ++member) {
    const Slot& slot = entry.slots[member];
    if (!slot.announced) continue;
    const bool payload_fits = slot.payload.empty() || (!spec.on_gpu && slot.payload.size() == payload_bytes);
    const bool device_fits = spec.kind == OpKind::kJoin || spec.on_gpu == (slot.device >= 0);
    const bool expected_fit =
        slot.expected.empty() ||
        (spec.first_dimension_differs() && slot.expected.size() == spec.tensors.size() * entry.slots.size());
    if (!payload_fits || !device_fits || slot.extents.size() != num_extents || !are_rows(slot.extents, 1) ||
        !expected_fit) {
      throw Error(ErrorKind::kInternal, member_names_[member] + " sent a damaged announcement of " + entry.name);
    }
  }
}

// Whether a member has memory for other numbers of rows than come.
std::optional<Response> Negotiator::unexpected_rows(const Entry& entry) const {
  const RequestSpec& spec = entry.spec;
  const size_t size = entry.slots.size();
  for (size_t member = 0; member < size; ++member) {
    const std::vector<int64_t>& expected = entry.slots[member].expected;
    for (size_t i = 0; i < expected.size(); ++i) {
      const Slot& sender = entry.slots[i % size];
      const size_t place = spec.kind == OpKind::kAllgather ? i / size : member;
      const int64_t rows = sender.announced ? sender.extents[place] : 0;
      if (rows == expected[i]) continue;
      return error_for(entry, ErrorKind::kMismatch,
                       "Mismatched numbers of rows for " + entry.name + ": " + member_names_[member] + " expects " +
                           std::to_string(expected[i]) + " from " + member_names_[i % size] + ", which gives " +
                           std::to_string(rows) +
                           (spec.tensors.size() > 1 ? " of tensor " + std::to_string(i / size + 1) : "") + "." +
                           requests_of(entry));
    }
  }
  return std::nullopt;
}

bool Negotiator::has_all_values(const Entry& entry) {
  if (entry.spec.kind != OpKind::kAllreduce) return false;
  const size_t bytes = entry.spec.total_bytes();
  return std::all_of(entry.slots.begin(), entry.slots.end(),
                     [&](const Slot& slot) { return !slot.announced || slot.payload.size() == bytes; });
}

// Whether every member gives and takes its values at the same place of shared memory, where the others reach them.
bool Negotiator::is_reachable(const Entry& entry) {
  const uint64_t place = entry.slots.front().place;
  return place != 0 && !entry.spec.on_gpu &&
         std::all_of(entry.slots.begin(), entry.slots.end(), [&](const Slot& slot) { return slot.place == place; });
}

Response Negotiator::result_of(Entry& entry) {
  Response response;
  response.kind = Response::Kind::kResult;
  if (entry.spec.kind == OpKind::kAllreduce) reduce_values(entry, response);
  name_absent(entry, response);
  assign_id(entry);
  response.names.push_back(reference(entry));
  if (!response.absent.empty()) response.names.back().spec.push_back(entry.spec);
  return response;
}

// Reduces the values that came with the announcements, in the order of the ranks, into the memory of the first. Absent
// members would add neutral values, so they are left out; so are those of weight 0, whose values may be no numbers.
void Negotiator::reduce_values(Entry& entry, Response& response) const {
  name_absent(entry, response);
  const RequestSpec& spec = entry.spec;
  const bool averages = spec.reduce_op == ReduceOp::kAverage;
  const ReduceOp op = averages ? ReduceOp::kSum : spec.reduce_op;
  double total_weight = 0.0;
  std::vector<Slot*> givers;
  givers.reserve(entry.slots.size());
  for (Slot& slot : entry.slots) {
    if (!slot.announced || (spec.weighted && slot.weight == 0.0)) continue;
    givers.push_back(&slot);
    total_weight += slot.weight;
  }
  std::vector<const std::byte*> operands;
  operands.reserve(givers.size());
  size_t offset = 0;
  for (const TensorSpec& tensor : spec.tensors) {
    const auto count = static_cast<size_t>(num_elements(tensor.shape));
    operands.clear();
    for (Slot* giver : givers) {
      std::byte* values = giver->payload.data() + offset;
      if (spec.weighted) scale(tensor.dtype, values, values, count, spec.prescale * (giver->weight / total_weight));
      operands.push_back(values);
    }
    std::byte* result = givers.front()->payload.data() + offset;
    if (averages && !spec.weighted) {
      average(tensor.dtype, result, operands, count, spec.postscale, response.num_averaged);
    } else {
      reduce(tensor.dtype, op, result, operands, count, spec.postscale);
    }
    offset += count * size_of(tensor.dtype);
  }
  response.payload = std::move(givers.front()->payload);
}

void Negotiator::name_absent(const Entry& entry, Response& response) const {
  response.absent.clear();
  for (size_t member = 0; member < entry.slots.size(); ++member) {
    if (!entry.slots[member].announced) response.absent.push_back(static_cast<int32_t>(member));
  }
  const size_t num_present = entry.slots.size() - response.absent.size();
  response.num_averaged = static_cast<int32_t>(all_averaged_ ? entry.slots.size() : num_present);
}

// A member that has joined takes part with the device that it named then.
int32_t Negotiator::device_of(const Entry& entry, size_t member) const {
  if (entry.slots[member].announced) return entry.slots[member].device;
  const auto join = entries_.find(kJoinName);
  return join == entries_.end() ? kCpuDevice : join->second->slots[member].device;
}

std::vector<int32_t> Negotiator::devices_of(const Entry& entry) const {
  std::vector<int32_t> devices;
  if (!entry.spec.on_gpu) return devices;
  devices.reserve(entry.slots.size());
  for (size_t member = 0; member < entry.slots.size(); ++member) devices.push_back(device_of(entry, member));
  return devices;
}

Response Negotiator::join_result() {
  Entry& join = entry_of(kJoinName);
  join_ready_ = false;
  const int last = std::exchange(last_joined_, -1);
  std::fill(joined_.begin(), joined_.end(), false);
  num_joined_ = 0;
  all_averaged_ = true;
  std::optional<Response> error = disagreement(join);
  Response response;
  response.kind = Response::Kind::kResult;
  response.names.emplace_back().name = join.name;
  response.payload.resize(sizeof(int32_t));
  const auto set_rank = static_cast<int32_t>(last);
  std::memcpy(response.payload.data(), &set_rank, sizeof(set_rank));
  reset(join);
  return error ? *error : response;
}

// Operations of the same key may travel in one batch, so they must agree in all that belongs to a batch.
uint64_t Negotiator::family_of(const RequestSpec& spec) const {
  if (spec.kind != OpKind::kAllreduce && spec.kind != OpKind::kBroadcast) return 0;
  if (spec.tensors.size() > 1 && !options_.fuse_groups) return 0;
  RequestSpec kind = spec;
  kind.name.clear();
  kind.tensors.clear();
  if (spec.kind == OpKind::kAllreduce) {
    const DType dtype = spec.tensors.front().dtype;
    const bool one_dtype = std::all_of(spec.tensors.begin(), spec.tensors.end(),
                                       [&](const TensorSpec& tensor) { return tensor.dtype == dtype; });
    if (!one_dtype) return 0;
    kind.tensors.push_back({dtype, {}});
  }
  return kind.digest() | 1;
}

uint64_t Negotiator::fusion_key(const Entry& entry) const {
  if (entry.family == 0) return 0;
  uint64_t key = mix(entry.family, static_cast<uint64_t>(is_reachable(entry)));
  for (size_t member = 0; member < entry.slots.size(); ++member) {
    const Slot& slot = entry.slots[member];
    if (!slot.announced) key = mix(key, member + 1);
    if (entry.spec.weighted) key = mix(key, std::bit_cast<uint64_t>(slot.weight));
    if (entry.spec.on_gpu) key = mix(key, static_cast<uint64_t>(device_of(entry, member)));
  }
  return key | 1;
}

int32_t Negotiator::priority_of(const Entry& entry) {
  int32_t highest = INT32_MIN;
  for (const Slot& slot : entry.slots) {
    if (slot.announced) highest = std::max(highest, slot.priority);
  }
  return highest;
}

// Of what is ready, that for which there is room; by priority, and in the order in which it became ready.
std::vector<Negotiator::Entry*> Negotiator::take_startable(const Room& room) {
  if (ready_.empty()) return {};
  std::vector<std::tuple<int64_t, size_t, Entry*>> order;  // negated priority, place
  std::deque<Entry*> waiting;
  for (Entry* entry : std::exchange(ready_, {})) {
    const int32_t priority = priority_of(*entry);
    if (room.fits(entry->spec.total_bytes(), priority)) {
      order.emplace_back(-int64_t{priority}, order.size(), entry);
    } else {
      waiting.push_back(entry);
    }
  }
  ready_ = std::move(waiting);
  std::sort(order.begin(), order.end());
  std::vector<Entry*> startable;
  startable.reserve(order.size());
  for (const auto& [priority, place, entry] : order) startable.push_back(entry);
  return startable;
}

std::vector<Response> Negotiator::take_responses(const Room& room) {
  std::vector<Response> responses = std::move(answers_);
  answers_.clear();
  const std::vector<Entry*> startable = take_startable(room);
  std::vector<FusionCandidate> candidates;
  candidates.reserve(startable.size());
  for (const Entry* entry : startable) candidates.push_back({fusion_key(*entry), entry->spec.total_bytes()});
  const size_t most = room.any ? options_.fusion_threshold : std::min(options_.fusion_threshold, kSmallBatchBytes);
  for (const std::vector<size_t>& batch : fuse(candidates, most)) {
    std::vector<Entry*> entries;
    for (const size_t index : batch) entries.push_back(startable[index]);
    responses.push_back(execution_of(entries));
  }
  // Behind all that joined members have to take part in.
  if (join_ready_ && ready_.empty()) responses.push_back(join_result());
  return responses;
}

Response Negotiator::execution_of(const std::vector<Entry*>& entries) {
  Response response;
  name_absent(*entries.front(), response);
  response.priority = priority_of(*entries.front());
  response.devices = devices_of(*entries.front());
  response.direct = is_reachable(*entries.front());
  for (Entry* entry : entries) {
    assign_id(*entry);
    NameRef ref = reference(*entry);
    add_extents(*entry, ref);
    if (!response.absent.empty()) ref.spec.push_back(entry->spec);
    response.names.push_back(std::move(ref));
    reset(*entry);
  }
  return response;
}

void Negotiator::add_extents(const Entry& entry, NameRef& ref) const {
  const OpKind kind = entry.spec.kind;
  const size_t num_extents = kind == OpKind::kAllgather ? entry.spec.tensors.size() : entry.slots.size();
  for (const Slot& slot : entry.slots) {
    if (entry.spec.weighted && slot.announced) ref.total_weight += slot.weight;
    if (kind != OpKind::kAllgather && kind != OpKind::kAlltoall) continue;
    ref.extents.push_back(slot.announced ? slot.extents : std::vector<int64_t>(num_extents, 0));
  }
}

// Members know the number only if none of them announced in full, that is, if it was given before.
NameRef Negotiator::reference(Entry& entry) {
  const bool all_by_id =
      std::none_of(entry.slots.begin(), entry.slots.end(), [](const Slot& slot) { return slot.spec != nullptr; });
  NameRef ref;
  ref.by_id = all_by_id;
  if (all_by_id) {
    ref.id = static_cast<uint32_t>(entry.id);
  } else {
    ref.name = entry.name;
    ref.new_id = entry.id;
  }
  return ref;
}

void Negotiator::assign_id(Entry& entry) {
  if (entry.id >= 0) {
    recent_.splice(recent_.begin(), recent_, entry.recent);
    return;
  }
  if (!entry.spec.cacheable || options_.cache_capacity == 0) return;
  if (ids_.size() < options_.cache_capacity) {
    entry.id = static_cast<int64_t>(ids_.size());
    ids_.push_back(&entry);
  } else {
    const auto oldest = std::find_if(recent_.rbegin(), recent_.rend(),
                                     [](const Entry* candidate) { return candidate->num_announced == 0; });
    if (oldest == recent_.rend()) return;
    Entry& victim = **oldest;
    entry.id = victim.id;
    ids_[static_cast<size_t>(entry.id)] = &entry;
    recent_.erase(victim.recent);
    entries_.erase(std::string(victim.name));
  }
  recent_.push_front(&entry);
  entry.recent = recent_.begin();
}

}  // namespace hvd
