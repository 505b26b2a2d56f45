// Collectives on GPU memory by NCCL, or RCCL, found at run time.
//
// A communicator for each process set and list of devices, made when it is first needed, in parallel with others. All
// batches of a communicator go to it in the order of the coordinator's answers. One thread calls NCCL; the engine hands
// tasks over and is rung when one is on its stream, when it is done, and when it failed.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/nccl/library.h"
#include "base/clock.h"
#include "device/gpu.h"

namespace hvd::nccl {

struct CommunicatorSpec {
  uint32_t set = 0;
  std::vector<int> devices;  // by set rank, as Batch::devices
  int set_rank = 0;
  std::shared_ptr<device::Gpu> gpu;
  std::string unique_id;                // what ncclGetUniqueId gave on set rank 0
  std::vector<std::string> rank_names;  // by set rank, for messages
};

struct NcclOptions {
  // Within which a communicator must be made. Eight B200 took 55 s, thousands of GPUs 150 s (NVIDIA/nccl#1646, #1156).
  Duration creation_time = std::chrono::seconds(180);
  // NCCL notices a rank's death too, in words of its own; the engine, which knows who it was, may take that long.
  Duration better_reason_time = std::chrono::seconds(1);
  bool calls_alone = false;  // NCCL also does what concerns one rank only, which otherwise is a copy; for tests
};

class NcclBackend final : public Backend {
 public:
  // `ring` may be called from any thread, and is not called after the destructor.
  NcclBackend(std::shared_ptr<const Library> library, std::function<void()> ring, NcclOptions options = {});
  NcclBackend(const NcclBackend&) = delete;
  NcclBackend& operator=(const NcclBackend&) = delete;
  ~NcclBackend() override;  // ends communicators in good order, or aborts them; at most 2 s

  // Bytes of a new unique id; throws Error (kInternal) with NCCL's words.
  [[nodiscard]] std::string make_unique_id() const;
  // Starts to make a communicator; batches may follow at once. Throws Error (kInternal) if the device refuses a stream.
  void add_communicator(CommunicatorSpec spec);
  [[nodiscard]] bool has_communicator(uint32_t set, const std::vector<int>& devices) const;
  // Whether NCCL can do this batch: not 16-bit integers, and factors only with sums of floating point that concern more
  // than one rank. The same on all ranks, as it looks at what is the same.
  [[nodiscard]] static bool serves(const Batch& batch);

  void remove_process_set(uint32_t id) override;
  // Aborts all communicators, so that their kernels end; waits for that at most 2 s. From then on advance() of every
  // execution throws, and done() says whether the device lets go of its memory, which otherwise must be kept.
  void give_up(const std::string& reason) override;

  // Throws Error (kInternal) for Adasum, which StagedBackend does.
  std::unique_ptr<Execution> execute(Collective collective, Batch batch) override;

 private:
  class State;
  std::unique_ptr<State> state_;
};

}  // namespace hvd::nccl
