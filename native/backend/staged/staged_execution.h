// What batches have in common that go through host memory.
#pragma once

#include <deque>
#include <memory>

#include "backend/backend.h"
#include "backend/native/logical_vector.h"
#include "backend/staged/collectives.h"
#include "backend/staged/copies.h"

namespace hvd::staged {

struct Means {
  Backend& host;
  std::shared_ptr<Site> site;
  std::shared_ptr<BlockQueue> queue;  // of the process set
  std::shared_ptr<Bell> bell;
  std::shared_ptr<Keeper> keeper;
};

class StagedExecution : public Execution {
 public:
  StagedExecution(Means means, Batch batch);
  StagedExecution(const StagedExecution&) = delete;
  StagedExecution& operator=(const StagedExecution&) = delete;
  // Waits until copies that have begun are done, as callers may free their memory afterward; 2 s at most.
  ~StagedExecution() override;

  bool advance() final;
  [[nodiscard]] bool done() const final { return done_; }
  [[nodiscard]] bool handed_over() const final { return finished_ != nullptr; }
  [[nodiscard]] device::SharedEvent finished() const final { return finished_; }
  [[nodiscard]] bool may_be_on_device() const final { return false; }  // the destructor waits

 protected:
  // As advance(), until everything is on its way back; then it calls hand_over().
  virtual bool go_on() = 0;
  void hand_over();

  [[nodiscard]] Block try_take_block() { return means_.queue->try_take(this, *means_.site->pool); }
  // No more will be taken: the next execution may.
  void leave_queue() { means_.queue->leave(this); }
  // Queue copies of these elements of the batch; in host memory they lie one after the other.
  void copy_in(const std::vector<Range>& ranges, std::byte* to);
  void copy_back(const std::vector<Range>& ranges, const std::byte* from);
  // Gives blocks back whose copies have ended.
  bool release_blocks();

  [[nodiscard]] const Batch& batch() const { return batch_; }
  [[nodiscard]] size_t element_bytes() const { return element_bytes_; }
  [[nodiscard]] Backend& host() { return means_.host; }
  [[nodiscard]] int64_t block_count() const;
  // A batch without memory for the host's backend.
  [[nodiscard]] Batch host_batch(uint32_t sequence) const;

  // A block and the point behind its copies; nullptr for either if there is none.
  struct Copied {
    Copied(int64_t which, Block memory) : what(which), block(std::move(memory)) {}
    [[nodiscard]] bool arrived() const { return event == nullptr || event->reached(); }

    int64_t what;
    Block block;
    device::SharedEvent event;
  };
  std::deque<Copied> coming_;
  std::deque<Copied> going_;

  [[nodiscard]] device::SharedEvent mark_in() { return in_.mark(); }
  [[nodiscard]] device::SharedEvent mark_back();

 private:
  [[nodiscard]] bool may_begin() const;
  void let_go();

  Means means_;
  Batch batch_;
  size_t element_bytes_;
  LogicalVector input_;
  LogicalVector output_;
  CopyLane in_;
  CopyLane back_;
  device::SharedEvent last_back_;
  device::SharedEvent finished_;
  bool done_ = false;
};

// Cut into chunks, which go their way independently of each other.
[[nodiscard]] std::unique_ptr<Execution> execute_in_chunks(Means means, Batch batch, std::unique_ptr<Chunks> chunks,
                                                           uint32_t first_sequence);
// Adasum: each tensor is combined as a whole, so the batch is collected in ordinary memory.
[[nodiscard]] std::unique_ptr<Execution> execute_adasum(Means means, Batch batch, uint32_t sequence);

}  // namespace hvd::staged
