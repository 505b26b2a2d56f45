// An allreduce whose values travel between hosts in 8 bits (docs/decisions/0060). Its plan is that of kStars over
// blocks in place of elements:
//
//   a member of a host  gives its values to the host's leader in float32, and gets the result in the dtype
//   a leader            adds the values of its host in float32, quantizes the sum for the host that owns the share
//   the owner's leader  adds what the hosts have sent, its own quantized like the others, in the order of the hosts,
//                       quantizes the sum for all hosts, and takes itself what they will read
//
// So a value is rounded twice however many hosts there are, and all ranks end with the same bits. Divisor and postscale
// are applied by each leader to what it has read.
#pragma once

#include <vector>

#include "backend/backend.h"
#include "backend/native/quantized_vector.h"
#include "plan/plan.h"
#include "transport/transport.h"

namespace hvd {

class QuantizedExecution final : public Execution {
 public:
  // `plan`: of Algorithm::kStars over the blocks of the batch; `hosts`: of each set rank.
  QuantizedExecution(Batch batch, Plan plan, std::vector<int> hosts, Transport& transport);

  bool advance() override;
  [[nodiscard]] bool done() const override { return active_.empty() && next_lane_ == plan_.lanes.size(); }
  [[nodiscard]] bool waits_for(int rank) override;

 private:
  struct ActiveLane {
    const Lane* lane = nullptr;
    size_t step = 0;
  };
  // A frame that was received, or room for one, and how much of it has been dealt with.
  struct Place {
    const std::byte* from = nullptr;
    std::byte* to = nullptr;
  };

  bool try_step(const Step& step, uint32_t lane);
  bool collect_frames(const Step& step, const FrameKey& key);
  bool reserve_rooms(const Step& step, const FrameKey& key);
  void compute(const Step& step);

  // Of one run each.
  void give_own(const BlockRun& run);
  void take_result(const BlockRun& run);
  void quantize_host(const Step& step, const BlockRun& run);
  void sum_host(const Step& step, const BlockRun& run);
  void reduce_hosts(const BlockRun& run);
  void store_result(const BlockRun& run, float* values);
  void read_own(const BlockRun& run, float* values);

  [[nodiscard]] bool is_local(int peer) const { return hosts_[static_cast<size_t>(peer)] == host_; }
  [[nodiscard]] size_t bytes_received(const Step& step, int peer) const;
  [[nodiscard]] size_t bytes_sent(const Step& step, int peer) const;
  [[nodiscard]] Link& link(int set_rank, const FrameKey& key) {
    return transport_.data(batch_.members[static_cast<size_t>(set_rank)], key);
  }
  [[nodiscard]] FrameKey key_of(uint32_t lane) const { return {batch_.set, batch_.sequence, lane}; }

  Batch batch_;
  Plan plan_;
  std::vector<int> hosts_;
  int host_;
  Transport& transport_;
  QuantizedVector vector_;
  size_t next_lane_ = 0;
  std::vector<ActiveLane> active_;

  // Of the step at hand; members so that no step allocates.
  std::vector<Frame*> frames_;
  std::vector<Place> local_frames_;
  std::vector<Place> remote_frames_;
  size_t hosts_before_ = 0;  // remote frames of hosts before this one
  std::vector<Place> local_rooms_;
  std::vector<Place> remote_rooms_;
  std::vector<const std::byte*> operands_;
  std::vector<float> own_;
  std::vector<float> sum_;
  std::vector<float> total_;
  std::vector<std::byte> codes_;
};

}  // namespace hvd
