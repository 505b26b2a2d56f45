// Collectives on GPU memory: by NCCL where all members of a process set can use it, else through host memory.
//
// The first batch of a process set and list of devices begins an agreement, in which the members show each other what
// they have; that batch and those behind it wait, in their order, and others go on meanwhile.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "backend/gpu/capabilities.h"
#include "backend/gpu/nccl_finder.h"
#include "backend/nccl/nccl_backend.h"
#include "backend/staged/staged_backend.h"
#include "base/log.h"

namespace hvd {

struct GpuOptions {
  std::vector<std::string> driver_candidates;  // paths, or names for the system's loader
  std::vector<std::string> nccl_candidates;
  GpuOperations operations = GpuOperations::kAuto;
  StagedOptions staged;
};

class GpuRoute;

class GpuBackend final : public Backend {
 public:
  struct Surroundings {
    bool deterministic = false;                         // reductions are those of the host
    std::function<std::string(int rank)> name_of_rank;  // for messages
    LogSink log;                                        // hears once which way a process set takes
    std::function<void()> ring;                         // may be called from any thread until the destructor ends
  };

  // `host`: executes batches of host memory.
  GpuBackend(std::unique_ptr<Backend> host, const GpuOptions& options, std::shared_ptr<NcclFinder> finder,
             Surroundings surroundings);
  GpuBackend(const GpuBackend&) = delete;
  GpuBackend& operator=(const GpuBackend&) = delete;
  ~GpuBackend() override;

  void remove_process_set(uint32_t id) override;
  void give_up(const std::string& reason) override;

  std::unique_ptr<Execution> execute(Collective collective, Batch batch) override;

  // Batches that NCCL was given, for tests and statistics.
  [[nodiscard]] uint64_t num_nccl_batches() const { return num_nccl_batches_; }

 private:
  friend class GpuRoute;

  [[nodiscard]] bool goes_by_nccl(GpuPath::Kind kind, Collective collective, const Batch& batch) const;
  std::unique_ptr<Execution> begin_on(GpuPath::Kind kind, Collective collective, Batch batch);
  [[nodiscard]] GpuCapabilities make_card(const Batch& batch);
  [[nodiscard]] nccl::NcclBackend& nccl();
  [[nodiscard]] StagedBackend& staged();
  // Of the members of a batch.
  [[nodiscard]] std::vector<std::string> names_of(const Batch& batch) const;
  [[nodiscard]] GpuPath settle(const Batch& batch, const std::vector<GpuCapabilities>& all_capabilities);
  void announce(const Batch& batch, const GpuPath& path);

  std::unique_ptr<Backend> host_;
  const GpuOptions options_;
  const std::shared_ptr<NcclFinder> finder_;
  const Surroundings surroundings_;
  std::unique_ptr<nccl::NcclBackend> nccl_;
  std::unique_ptr<StagedBackend> staged_;
  std::map<std::pair<uint32_t, std::vector<int>>, std::shared_ptr<GpuRoute>> routes_;  // by set and devices
  std::map<uint32_t, uint32_t> num_agreements_;                                        // by set
  uint64_t num_nccl_batches_ = 0;
  bool has_warned_ = false;  // of a fault of NCCL
};

}  // namespace hvd
