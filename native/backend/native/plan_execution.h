// Runs a plan over the links of a transport, step by step, without ever waiting.
#pragma once

#include <span>
#include <vector>

#include "backend/backend.h"
#include "backend/native/logical_vector.h"
#include "plan/plan.h"
#include "transport/transport.h"

namespace hvd {

class PlanExecution final : public Execution {
 public:
  PlanExecution(Batch batch, Plan plan, Transport& transport);
  PlanExecution(const PlanExecution&) = delete;
  PlanExecution& operator=(const PlanExecution&) = delete;
  ~PlanExecution() override;

  bool advance() override;
  [[nodiscard]] bool done() const override { return active_.empty() && next_lane_ == plan_.lanes.size(); }
  [[nodiscard]] bool waits_for(int rank) override;

 private:
  struct ActiveLane {
    const Lane* lane = nullptr;
    size_t step = 0;
    bool expects = false;  // a frame may come to its place in the output
  };

  [[nodiscard]] size_t lanes_per_member() const;
  bool try_step(const Step& step, uint32_t lane);
  void expect_frame(ActiveLane& active);
  bool collect_frames(const Step& step, const FrameKey& key);
  bool reserve_rooms(const Step& step, const FrameKey& key, int64_t count);
  std::byte* reserve_shared(const Step& step, size_t bytes);
  void send(const Step& step, const FrameHeader& header);
  void compute(const Step& step, int64_t count);
  void compute_block(const Step& step, const Extent& own, std::byte* stored, size_t offset, int64_t count);
  [[nodiscard]] const std::byte* prescaled(const std::byte* own, int64_t count);
  // Whether what the step sends lies in few places of memory as it is sent; then parts_ says where.
  bool locate_value(const Step& step, int64_t count);
  [[nodiscard]] Link& link(int set_rank, const FrameKey& key) {
    return transport_.data(batch_.members[static_cast<size_t>(set_rank)], key);
  }
  // The link to a rank of this host, or nullptr.
  [[nodiscard]] RingLink* ring(int set_rank) { return transport_.ring(batch_.members[static_cast<size_t>(set_rank)]); }
  [[nodiscard]] FrameKey key_of(uint32_t lane) const { return {batch_.set, batch_.sequence, lane}; }

  Batch batch_;
  Plan plan_;
  Transport& transport_;
  size_t element_bytes_;
  LogicalVector input_;
  LogicalVector output_;
  size_t most_lanes_;
  size_t next_lane_ = 0;
  std::vector<ActiveLane> active_;

  // Of the step at hand; members so that no step allocates.
  std::vector<Frame*> frames_;
  std::vector<RingLink*> sharing_;  // links whose frames refer to one payload, in the first room
  std::vector<std::byte*> rooms_;   // of links that do not send from memory
  bool from_memory_ = false;        // those that do send parts_
  std::vector<std::span<const std::byte>> parts_;
  std::vector<const std::byte*> operands_;
  std::vector<std::byte> scratch_;
};

}  // namespace hvd
