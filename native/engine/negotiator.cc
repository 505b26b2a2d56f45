#include "engine/negotiator.h"

#include <algorithm>
#include <map>
#include <sstream>

#include "engine/fuser.h"
#include "reduce/kernels.h"

namespace hvd {
namespace {

constexpr size_t kMostInlineBytes = 4096;
constexpr size_t kMostInlineBytesOfAll = 32768;

size_t total_bytes(const RequestSpec& spec) {
  size_t bytes = 0;
  for (const TensorSpec& tensor : spec.tensors) {
    bytes += static_cast<size_t>(num_elements(tensor.shape)) * size_of(tensor.dtype);
  }
  return bytes;
}

// What differs first between two requests of one name, in the words of a message.
std::string first_difference(const RequestSpec& a, const RequestSpec& b) {
  if (a.tensors.size() != b.tensors.size()) return "numbers of tensors in the group";
  for (size_t i = 0; i < a.tensors.size(); ++i) {
    if (a.tensors[i].dtype != b.tensors[i].dtype) return "data types";
  }
  if (a.kind != b.kind) return "operations";
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
  if (a.root != b.root) return "root ranks";
  return "requests";
}

}  // namespace

bool may_travel_with_announcement(const RequestSpec& spec, int num_members) {
  if (spec.kind != OpKind::kAllreduce) return false;
  const size_t bytes = total_bytes(spec);
  return bytes <= kMostInlineBytes && bytes * static_cast<size_t>(num_members) <= kMostInlineBytesOfAll;
}

Negotiator::Negotiator(std::vector<std::string> member_names, NegotiatorOptions options)
    : member_names_(std::move(member_names)), options_(options) {}

Negotiator::Entry& Negotiator::entry_of(const std::string& name) {
  std::unique_ptr<Entry>& entry = entries_[name];
  if (entry == nullptr) {
    entry = std::make_unique<Entry>();
    entry->name = name;
    entry->slots.resize(member_names_.size());
  }
  return *entry;
}

bool Negotiator::announce(int member, Announcement announcement, TimePoint now) {
  Entry* entry = nullptr;
  if (announcement.full) {
    entry = &entry_of(announcement.spec.name);
  } else {
    if (announcement.id >= ids_.size()) return false;
    entry = ids_[announcement.id];
    if (entry->digest != announcement.digest) return false;
  }
  Slot& slot = entry->slots[static_cast<size_t>(member)];
  if (slot.announced) {
    throw Error(ErrorKind::kInternal,
                member_names_[static_cast<size_t>(member)] + " announced " + entry->name + " twice");
  }
  slot.announced = true;
  slot.digest = announcement.digest;
  if (announcement.full) slot.spec = std::make_unique<RequestSpec>(std::move(announcement.spec));
  slot.extents = std::move(announcement.extents);
  slot.payload = std::move(announcement.payload);
  if (entry->num_announced++ == 0) {
    entry->first = now;
    ++num_pending_;
  }
  if (!left_.empty()) {
    answers_.push_back(error_for(*entry, ErrorKind::kShutDown, entry->name + " failed: " + left_));
    reset(*entry);
  } else if (entry->num_announced == static_cast<int>(entry->slots.size())) {
    take_ready(*entry);
  }
  return true;
}

void Negotiator::member_left(int member, const std::string& reason) {
  if (!left_.empty()) return;  // nothing is pending any more, and the first cause counts
  left_ = member_names_[static_cast<size_t>(member)] + " has shut Horovod down (" + reason +
          "), so operations that need it cannot be done any more";
  ready_.clear();
  std::vector<Entry*> pending;
  for (const auto& [name, entry] : entries_) {
    if (entry->num_announced > 0) pending.push_back(entry.get());
  }
  for (Entry* entry : pending) {
    answers_.push_back(error_for(*entry, ErrorKind::kShutDown, entry->name + " failed: " + left_));
    reset(*entry);
  }
}

// All members announced the name: answer at once, or line it up for execution.
void Negotiator::take_ready(Entry& entry) {
  if (std::optional<Response> error = disagreement(entry)) {
    answers_.push_back(std::move(*error));
    reset(entry);
    return;
  }
  if (entry.slots.front().spec != nullptr) entry.spec = *entry.slots.front().spec;
  entry.digest = entry.slots.front().digest;
  check_slots(entry);
  if (entry.spec.kind == OpKind::kBarrier || has_all_values(entry)) {
    answers_.push_back(result_of(entry));
    reset(entry);
  } else {
    ready_.push_back(&entry);
  }
}

std::optional<Response> Negotiator::disagreement(Entry& entry) const {
  const auto spec_of = [&](const Slot& slot) -> const RequestSpec& { return slot.spec ? *slot.spec : entry.spec; };
  const Slot& first = entry.slots.front();
  const auto other = std::find_if(entry.slots.begin(), entry.slots.end(),
                                  [&](const Slot& slot) { return slot.digest != first.digest; });
  if (other == entry.slots.end()) return std::nullopt;
  std::ostringstream text;
  text << "Mismatched " << first_difference(spec_of(first), spec_of(*other)) << " for " << entry.name
       << ": all ranks must submit the same.";
  std::map<std::string, std::vector<size_t>> members_by_request;
  for (size_t member = 0; member < entry.slots.size(); ++member) {
    members_by_request[spec_of(entry.slots[member]).describe()].push_back(member);
  }
  for (const auto& [request, members] : members_by_request) {
    text << "\n  ";
    for (size_t i = 0; i < members.size() && i < 8; ++i) text << (i == 0 ? "" : ", ") << member_names_[members[i]];
    if (members.size() > 8) text << " and " << members.size() - 8 << " more";
    text << " sent " << request;
  }
  return error_for(entry, ErrorKind::kMismatch, text.str());
}

Response Negotiator::error_for(const Entry& entry, ErrorKind kind, std::string message) const {
  Response response;
  response.kind = Response::Kind::kError;
  response.names.push_back({.by_id = false, .id = 0, .name = entry.name, .new_id = -1, .extents = {}});
  response.error_kind = kind;
  response.message = std::move(message);
  return response;
}

// What members send beside the agreed request must have the lengths that follow from it.
void Negotiator::check_slots(const Entry& entry) const {
  const RequestSpec& spec = entry.spec;
  const size_t payload_bytes = spec.kind == OpKind::kAllreduce ? total_bytes(spec) : 0;
  const size_t num_extents = spec.kind == OpKind::kAllgather  ? spec.tensors.size()
                             : spec.kind == OpKind::kAlltoall ? entry.slots.size()
                                                              : 0;
  for (size_t member = 0; member < entry.slots.size(); ++member) {
    const Slot& slot = entry.slots[member];
    const bool payload_fits = slot.payload.empty() || slot.payload.size() == payload_bytes;
    if (!payload_fits || slot.extents.size() != num_extents) {
      throw Error(ErrorKind::kInternal, member_names_[member] + " sent a damaged announcement of " + entry.name);
    }
  }
}

bool Negotiator::has_all_values(const Entry& entry) {
  if (entry.spec.kind != OpKind::kAllreduce) return false;
  const size_t bytes = total_bytes(entry.spec);
  return std::all_of(entry.slots.begin(), entry.slots.end(),
                     [&](const Slot& slot) { return slot.payload.size() == bytes; });
}

// Reduces the values that came with the announcements, in the order of the ranks.
Response Negotiator::result_of(Entry& entry) {
  const size_t bytes = total_bytes(entry.spec);
  Response response;
  response.kind = Response::Kind::kResult;
  const bool average = entry.spec.reduce_op == ReduceOp::kAverage;
  const double factor = entry.spec.postscale / (average ? static_cast<double>(entry.slots.size()) : 1.0);
  size_t offset = 0;
  response.payload.resize(bytes);
  std::vector<const std::byte*> operands(entry.slots.size());
  for (const TensorSpec& tensor : entry.spec.tensors) {
    const auto count = static_cast<size_t>(num_elements(tensor.shape));
    for (size_t i = 0; i < operands.size(); ++i) operands[i] = entry.slots[i].payload.data() + offset;
    if (count > 0) {
      reduce(tensor.dtype, average ? ReduceOp::kSum : entry.spec.reduce_op, response.payload.data() + offset, operands,
             count, factor);
    }
    offset += count * size_of(tensor.dtype);
  }
  assign_id(entry);
  response.names.push_back(reference(entry));
  return response;
}

uint64_t Negotiator::fusion_key(const Entry& entry) const {
  const RequestSpec& spec = entry.spec;
  if (spec.kind != OpKind::kAllreduce && spec.kind != OpKind::kBroadcast) return 0;
  RequestSpec kind = spec;
  kind.name.clear();
  kind.tensors.clear();
  const bool one_dtype = std::all_of(spec.tensors.begin(), spec.tensors.end(), [&](const TensorSpec& tensor) {
    return tensor.dtype == spec.tensors.front().dtype;
  });
  if (spec.kind == OpKind::kAllreduce) {
    if (!one_dtype) return 0;
    kind.tensors.push_back({spec.tensors.front().dtype, {}});
  }
  return kind.digest() | 1;
}

std::vector<Response> Negotiator::take_responses(bool executions_allowed) {
  std::vector<Response> responses = std::move(answers_);
  answers_.clear();
  if (!executions_allowed || ready_.empty()) return responses;
  std::vector<FusionCandidate> candidates;
  candidates.reserve(ready_.size());
  for (const Entry* entry : ready_) candidates.push_back({fusion_key(*entry), total_bytes(entry->spec)});
  for (const std::vector<size_t>& batch : fuse(candidates, options_.fusion_threshold)) {
    std::vector<Entry*> entries;
    for (const size_t index : batch) entries.push_back(ready_[index]);
    responses.push_back(execution_of(entries));
  }
  ready_.clear();
  return responses;
}

Response Negotiator::execution_of(const std::vector<Entry*>& entries) {
  Response response;
  for (Entry* entry : entries) {
    assign_id(*entry);
    NameRef ref = reference(*entry);
    if (entry->spec.first_dimension_differs()) {
      for (Slot& slot : entry->slots) ref.extents.push_back(std::move(slot.extents));
    }
    response.names.push_back(std::move(ref));
    reset(*entry);
  }
  return response;
}

// Members know the number only if none of them announced in full, that is, if it was given before.
NameRef Negotiator::reference(Entry& entry) {
  const bool all_by_id =
      std::none_of(entry.slots.begin(), entry.slots.end(), [](const Slot& slot) { return slot.spec != nullptr; });
  if (all_by_id) {
    return {.by_id = true, .id = static_cast<uint32_t>(entry.id), .name = {}, .new_id = -1, .extents = {}};
  }
  return {.by_id = false, .id = 0, .name = entry.name, .new_id = entry.id, .extents = {}};
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

void Negotiator::reset(Entry& entry) {
  for (Slot& slot : entry.slots) slot = Slot();
  entry.num_announced = 0;
  entry.reported = false;
  --num_pending_;
  if (entry.id < 0) entries_.erase(std::string(entry.name));
}

std::optional<std::string> Negotiator::report_stalled(TimePoint now, Duration patience, bool again) {
  std::map<std::string, std::vector<std::string>> names_by_missing;
  for (const auto& [name, entry] : entries_) {
    const bool partial = entry->num_announced > 0 && entry->num_announced < static_cast<int>(entry->slots.size());
    if (!partial || (entry->reported && !again) || now - entry->first < patience) continue;
    entry->reported = true;
    std::string missing;
    for (size_t member = 0; member < entry->slots.size(); ++member) {
      if (!entry->slots[member].announced) missing += (missing.empty() ? "" : ", ") + member_names_[member];
    }
    names_by_missing[missing].push_back(name);
  }
  if (names_by_missing.empty()) return std::nullopt;
  std::ostringstream text;
  text << "Some ranks have waited for more than " << std::chrono::duration_cast<std::chrono::seconds>(patience).count()
       << " s for operations that the other ranks have not submitted. Missing ranks:";
  for (const auto& [missing, names] : names_by_missing) {
    text << "\n  " << missing << ": [";
    for (size_t i = 0; i < names.size() && i < 6; ++i) text << (i == 0 ? "" : ", ") << names[i];
    text << (names.size() > 6 ? " …]" : "]");
  }
  return text.str();
}

}  // namespace hvd
