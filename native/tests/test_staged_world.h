// Ranks whose tensors lie on devices of the fake driver, on memory that the host must not touch, and who exchange them
// through host memory. One thread takes turns between the ranks, and sleeps until a bell rings when nothing moves.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

#include "backend/staged/staged_backend.h"
#include "testing/fake_cuda.h"
#include "tests/test_backend_world.h"

namespace hvd::testing {

using Values = std::vector<std::byte>;

// One operation of all ranks. Counts are elements.
struct Work {
  OpKind kind = OpKind::kAllreduce;
  bool adasum = false;
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  double prescale = 1.0;
  double postscale = 1.0;
  bool in_place = false;
  int root = 0;
  std::vector<int64_t> tensors = {};              // of allreduce and broadcast
  std::vector<std::vector<int64_t>> counts = {};  // of alltoall by source and target; of others one row, by rank

  [[nodiscard]] std::vector<int64_t> input_counts(int rank) const;
  [[nodiscard]] std::vector<int64_t> output_counts(int rank) const;
  // `batch` has members and memory.
  [[nodiscard]] std::unique_ptr<Execution> start(Backend& backend, Batch batch) const;
};

// What a rank gives, the same for the same seed.
[[nodiscard]] std::vector<Values> random_inputs(const Work& work, int rank, uint64_t seed);
// What all ranks have after it on the host alone.
[[nodiscard]] std::vector<std::vector<Values>> host_results(int size, const Work& work, uint64_t seed,
                                                            Wire wire = Wire::kMemory, bool deterministic = false);

struct StagedWorldOptions {
  int size = 2;
  StagedOptions staged{.chunk_bytes = 1024, .max_pinned_bytes = 4096};
  Wire wire = Wire::kMemory;
  bool deterministic = false;
  int num_devices = 4;  // ranks take them in turn
};

// Counts how often anyone rang.
class Rings {
 public:
  void ring();
  [[nodiscard]] uint64_t count() const;
  // Waits until there were more than `seen`; returns whether there were, within 20 s.
  [[nodiscard]] bool wait_past(uint64_t seen) const;

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable rung_;
  uint64_t count_ = 0;
};

class StagedWorld {
 public:
  using Executions = BackendWorld::Executions;

  // The arrays of one operation, and its execution on each rank.
  struct Started {
    std::vector<std::vector<DeviceBytes>> inputs;   // by rank
    std::vector<std::vector<DeviceBytes>> outputs;  // by rank; empty in place
    std::vector<device::SharedEvent> ready;         // by rank, may be empty

    [[nodiscard]] std::vector<std::vector<Values>> results() const;
  };

  StagedWorld(const FakeCuda& cuda, const StagedWorldOptions& options = {});
  StagedWorld(const StagedWorld&) = delete;
  StagedWorld& operator=(const StagedWorld&) = delete;
  ~StagedWorld();

  [[nodiscard]] int size() const { return hosts_->size(); }
  [[nodiscard]] const std::shared_ptr<device::Gpu>& gpu(int rank) const { return gpus_[static_cast<size_t>(rank)]; }
  [[nodiscard]] Rings& rings() { return *rings_; }
  [[nodiscard]] BackendWorld& hosts() { return *hosts_; }
  // Ends the backend of a rank.
  void end_backend(int rank) { backends_[static_cast<size_t>(rank)].reset(); }

  // Makes the arrays of all ranks.
  [[nodiscard]] Started prepare(const Work& work, uint64_t seed) const;
  [[nodiscard]] std::unique_ptr<Execution> start(const Work& work, const Started& arrays, int rank, uint32_t set = 0);
  // Takes turns until all are done; returns false if nothing moved for 20 s.
  bool run(std::vector<Executions>& all);
  // A turn of each rank; returns whether anything moved.
  bool take_turns(std::vector<Executions>& all);
  // All of an operation.
  [[nodiscard]] std::vector<std::vector<Values>> execute(const Work& work, uint64_t seed);

 private:
  const FakeCuda& cuda_;
  std::unique_ptr<BackendWorld> hosts_;
  std::shared_ptr<Rings> rings_ = std::make_shared<Rings>();
  std::vector<std::shared_ptr<device::Gpu>> gpus_;
  std::vector<std::unique_ptr<StagedBackend>> backends_;
};

}  // namespace hvd::testing
