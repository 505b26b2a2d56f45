// An allreduce of what lies in memory that all members see: each member reduces its share straight from all members'
// memory and writes the result into all of it. Nothing is copied, and nothing travels but a word that a share is done.
//
// That all members have submitted is known before it starts, so none has to wait for another at the beginning. It ends
// when all shares are done: from then on nobody writes into this rank's memory any more.
#pragma once

#include <vector>

#include "backend/backend.h"
#include "backend/native/logical_vector.h"
#include "plan/plan.h"
#include "transport/transport.h"

namespace hvd {

class DirectExecution final : public Execution {
 public:
  // `batch.reachable` says where all members' values lie.
  DirectExecution(Batch batch, Transport& transport);

  bool advance() override;
  [[nodiscard]] bool done() const override { return share_.size() == 0 && untold_.empty() && unheard_.empty(); }
  [[nodiscard]] bool waits_for(int rank) override;

 private:
  void reduce_some();
  void reduce_block(int64_t count);
  bool tell();
  bool hear();
  [[nodiscard]] FrameKey key() const { return {batch_.set, batch_.sequence, 0}; }

  Batch batch_;
  Transport& transport_;
  size_t element_bytes_;
  std::vector<LogicalVector> values_;  // by set rank
  Range share_;                        // what is left of this rank's
  std::vector<int> untold_;            // global ranks that have not been told that the share is done
  std::vector<int> unheard_;           // global ranks that have not said so yet

  // Of the block at hand; members so that no block allocates.
  std::vector<std::byte*> places_;
  std::vector<const std::byte*> operands_;
  std::vector<std::byte> scratch_;
};

}  // namespace hvd
