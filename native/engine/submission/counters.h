// What the engine has done, counted by its parts.
#pragma once

#include <atomic>
#include <cstdint>

namespace hvd {

struct Counters {
  std::atomic<uint64_t> submitted{0}, announced_by_id{0}, batches{0}, fused_operations{0}, passes{0}, direct_batches{0},
      gpu_batches{0}, nccl_batches{0}, tuned_threshold{0}, waited_ns{0}, process_sets{0};
};

}  // namespace hvd
