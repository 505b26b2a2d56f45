// What an engine is told when it is made, and what it tells of its work.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/gpu/gpu_backend.h"
#include "base/clock.h"
#include "base/log.h"
#include "engine/execution/autotuner.h"
#include "engine/watch/position.h"
#include "plan/cost.h"

namespace hvd {

namespace mpi {
class MpiWorld;
}

struct EngineOptions {
  size_t fusion_threshold = size_t{64} << 20;
  size_t cache_capacity = 1024;
  std::optional<Duration> stall_check_time;         // none: as the pace of the job suggests; zero: never
  Duration stall_shutdown_time = Duration::zero();  // zero: never
  Duration deadlock_timeout = Duration::zero();     // zero: never
  bool fuse_groups = true;                          // with operations outside of the group
  int core = -1;                                    // that the engine's thread is bound to, if not negative
  int num_cores = 0;                                // that this process may keep busy; 0: those it may run on
  bool deterministic = false;                       // results do not depend on what travels together
  PlanOptions plans;                                // how the algorithm of a collective is chosen
  std::shared_ptr<mpi::MpiWorld> mpi;               // moves the data, if it is there
  std::optional<GpuOptions> gpu;                    // none: tensors on GPUs are refused
  StackDump stack_dump;                             // how to get at the stacks of this process's interpreter
  std::optional<AutotuneOptions> autotune;          // tunes the fusion threshold
  std::vector<std::string> rank_names;              // what messages say of a rank, "host-a:4711"
  LogSink log = [](LogLevel level, const std::string& message) { log_to_stderr(level, message, false); };
  std::shared_ptr<const Clock> clock = std::make_shared<SteadyClock>();
};

struct EngineStatistics {
  uint64_t submitted = 0;
  uint64_t announced_by_id = 0;
  uint64_t batches = 0;
  uint64_t fused_operations = 0;  // executed together with others
  uint64_t passes = 0;
  uint64_t direct_batches = 0;   // reduced where they lie in shared memory
  uint64_t gpu_batches = 0;      // on GPUs
  uint64_t nccl_batches = 0;     // of these: given to NCCL
  uint64_t tuned_threshold = 0;  // bytes; what autotuning has decided on, on the coordinator; 0: nothing yet
  uint64_t waited_ns = 0;        // between what was submitted last and its end, with nothing submitted meanwhile
  uint64_t process_sets = 0;     // that there are, with that of all ranks
};

}  // namespace hvd
