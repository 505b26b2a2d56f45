// What a coordinator has answered: operations are executed, get their result, or fail.
#include <algorithm>
#include <cstring>
#include <functional>
#include <span>

#include "engine/agreement/agreement.h"
#include "engine/devices/stand_in.h"

namespace hvd {

// Pending no more, and not yet executed: should its answer turn out to be damaged, it fails with everything else.
std::shared_ptr<Operation> Agreement::take(ProcessSet& set, const NameRef& ref) {
  in_hand_.push_back(set.take(ref));
  return in_hand_.back();
}

void Agreement::apply(ProcessSet& set, const Response& response) {
  const size_t num_before = in_hand_.size();
  switch (response.kind) {
    case Response::Kind::kExecute:
      execute(set, response);
      break;
    case Response::Kind::kError: {
      // It goes to all members, though one may not have submitted the name yet.
      if (!set.pending.contains(response.names.at(0).name)) break;
      const std::shared_ptr<Operation> operation = take(set, response.names.at(0));
      with_.observer.record_answer(*operation, true);
      with_.completion.finish(*operation, Error(response.error_kind, response.message));
      break;
    }
    case Response::Kind::kResult:
      apply_result(set, response);
      break;
  }
  in_hand_.resize(std::min(num_before, in_hand_.size()));
}

void Agreement::apply_result(ProcessSet& set, const Response& response) {
  if (response.lacks(set.set_rank)) {
    const auto nobodys = set.stand_in(response.names.at(0));  // learns the number of the name
    if (nobodys->spec.by_members) agree_on(set, *nobodys, response);
    return;
  }
  const std::shared_ptr<Operation> operation = take(set, response.names.at(0));
  const OpKind kind = operation->spec.kind;
  const OpTraits traits = traits_of(kind);
  if (kind != OpKind::kAllreduce && !traits.is_transfer && traits.moves_data) {
    throw Error(ErrorKind::kInternal,
                "the coordinator sent a result of " + operation->spec.name + ", which the members have to execute");
  }
  if (operation->spec.on_gpu && !response.payload.empty()) {
    throw Error(ErrorKind::kInternal,
                "the coordinator sent a result of " + operation->spec.name + ", whose memory the host does not touch");
  }
  with_.observer.record_answer(*operation, false);
  note_answer(set, *operation);
  if (traits.is_transfer) note_peer(set, *operation, response);
  size_t offset = 0;
  for (const Buffer& output : operation->request.outputs) {
    const size_t bytes = output.bytes();
    if (offset + bytes > response.payload.size()) {
      throw Error(ErrorKind::kInternal, "the coordinator sent a result that is too short");
    }
    if (bytes > 0) std::memcpy(output.data, response.payload.data() + offset, bytes);
    offset += bytes;
  }
  agree_on(set, *operation, response);
  with_.completion.finish(*operation);
}

// For a rank that has joined: what it takes part with.
std::shared_ptr<Operation> Agreement::stand_in(ProcessSet& set, const NameRef& ref, const Response& response) {
  std::shared_ptr<Operation> made = set.stand_in(ref);
  if (made->spec.on_gpu) made->gpu.device = response.devices.at(static_cast<size_t>(set.set_rank));
  give_neutral_memory(*made, set.size(), with_.devices.device_of(*made));
  return made;
}

void Agreement::execute(ProcessSet& set, const Response& response) {
  std::vector<std::shared_ptr<Operation>> operations;
  operations.reserve(response.names.size());
  const bool stands_in = response.lacks(set.set_rank);
  for (const NameRef& ref : response.names) {
    operations.push_back(stands_in ? stand_in(set, ref, response) : take(set, ref));
    operations.back()->state.priority = response.priority;
    with_.observer.record_answer(*operations.back(), false);
    note_answer(set, *operations.back());
  }
  if (operations.size() == 1 && !stands_in && traits_of(operations.front()->spec.kind).is_transfer) {
    note_peer(set, *operations.front(), response);
    with_.executions.transfer(set, operations.front(), response.peer);
    return;
  }
  with_.executions.execute(set, operations, response);
}

void Agreement::note_peer(const ProcessSet& set, Operation& operation, const Response& response) const {
  const int peer = response.peer;
  const bool is_member = peer >= 0 && peer < set.size() && peer != set.set_rank;
  const int wanted = operation.spec.root;
  if (!is_member || (wanted >= 0 && set.members[static_cast<size_t>(peer)] != wanted)) {
    throw Error(ErrorKind::kInternal,
                "the coordinator brings " + operation.spec.name + " together with a rank that it does not name");
  }
  if (operation.spec.kind == OpKind::kRecv) operation.result.source = peer;
}

void Agreement::note_answer(ProcessSet& set, const Operation& operation) {
  const std::optional<size_t> threshold = with_.tuning.note_answer(set.id, operation);
  if (threshold) set.negotiator->set_fusion_threshold(*threshold);
}

// What others have agreed on, this rank has not looked at before.
void Agreement::check_change(const ProcessSet& set, const RequestSpec& spec) const {
  const std::span<const int64_t> askers = spec.askers();
  const bool rise = std::adjacent_find(askers.begin(), askers.end(), std::greater_equal<>()) == askers.end();
  const bool exist = !askers.empty() && askers.front() >= 0 && askers.back() < with_.job.size;
  const bool is_asker = std::find(askers.begin(), askers.end(), with_.job.rank) != askers.end();
  bool fits = set.id == 0 && rise && exist && !is_asker;
  if (fits && spec.kind == OpKind::kRemoveProcessSet) {
    const ProcessSet* removed = find(static_cast<uint32_t>(spec.ranks.front()));
    fits = removed != nullptr && removed->id != 0 && removed->set_rank < 0;
  } else {
    fits = fits && spec.kind == OpKind::kAddProcessSet;
  }
  if (!fits)
    throw Error(ErrorKind::kInternal, "the coordinator changes process sets in a way that no ranks can ask for");
}

// All ranks of `set`, or the members of what they change, agreed on something that moves no data.
void Agreement::agree_on(ProcessSet& set, Operation& operation, const Response& response) {
  const std::vector<int64_t>& ranks = operation.spec.ranks;
  if (operation.state.stands_in) check_change(set, operation.spec);
  if (operation.spec.kind == OpKind::kAddProcessSet) {
    const uint32_t id = next_set_id_++;
    operation.result.new_process_set = id;
    make_process_set(id, std::vector<int>(ranks.begin(), ranks.end()));
    auto early = early_messages_.extract(id);
    if (early.empty()) return;
    for (auto& [peer, message] : early.mapped()) handle(peer, message);
  } else if (operation.spec.kind == OpKind::kRemoveProcessSet) {
    remove_process_set(static_cast<uint32_t>(ranks.at(0)));
  } else if (operation.spec.kind == OpKind::kShareMemory) {
    with_.executions.shared_arrays().make(operation);
  } else if (operation.spec.kind == OpKind::kJoin) {
    int32_t last = -1;
    if (response.payload.size() == sizeof(last)) std::memcpy(&last, response.payload.data(), sizeof(last));
    operation.result.last_joined = set.members.at(static_cast<size_t>(last));
  }
}

}  // namespace hvd
