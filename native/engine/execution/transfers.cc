// Sends and receives between this rank and another one of a process set.
//
// Both ends learn of the transfers between them in the same order, so they count alike, and each starts the oldest that
// have not ended there. So the oldest of all is under way at both ends, and however many a program submits, few cost
// time and memory.
#include "engine/execution/executions.h"

namespace hvd {
namespace {

// Enough to keep the links busy.
constexpr size_t kMostTransfersOfPair = 16;

}  // namespace

void Executions::transfer(SetMembers& set, const std::shared_ptr<Operation>& operation, int peer) {
  operation->state.peer = peer;
  PairTransfers& pair = transfers_[{set.id, peer}];
  pair.waiting.push_back(operation);
  start_transfers(set, peer, pair);
}

void Executions::start_transfers(SetMembers& set, int peer, PairTransfers& pair) {
  const int other = set.members[static_cast<size_t>(peer)];
  while (pair.num_active < kMostTransfersOfPair && !pair.waiting.empty()) {
    const std::shared_ptr<Operation> operation = std::move(pair.waiting.front());
    pair.waiting.pop_front();
    const bool sends = operation->spec.kind == OpKind::kSend;
    const Buffer& tensor = sends ? operation->request.inputs.front() : operation->request.outputs.front();
    Batch batch;
    batch.set = set.id;
    batch.sequence = set.next_transfer[peer]++;
    batch.members = sends ? std::vector{with_.job.rank, other} : std::vector{other, with_.job.rank};
    batch.set_rank = sends ? 0 : 1;
    (sends ? batch.inputs : batch.outputs) = {{tensor.data, static_cast<int64_t>(tensor.bytes())}};
    start(set, backends_.transfers->transfer(std::move(batch)), {operation});
    ++pair.num_active;
  }
}

void Executions::end_transfer(const Active& active) {
  const int peer = active.operations.front()->state.peer;
  PairTransfers& pair = transfers_.at({active.set->id, peer});
  --pair.num_active;
  if (!pair.waiting.empty()) {
    ended_transfers_.emplace_back(active.set, peer);
  } else if (pair.num_active == 0) {
    transfers_.erase({active.set->id, peer});
  }
}

// In the place of those that have ended.
void Executions::start_waiting_transfers() {
  for (const auto& [set, peer] : std::exchange(ended_transfers_, {})) {
    const auto pair = transfers_.find({set->id, peer});
    if (pair != transfers_.end()) start_transfers(*set, peer, pair->second);
  }
}

void Executions::fail_waiting_transfers(const Error& error) {
  for (const auto& [key, pair] : std::exchange(transfers_, {})) {
    for (const auto& operation : pair.waiting) with_.completion.fail(*operation, error);
  }
  ended_transfers_.clear();
}

}  // namespace hvd
