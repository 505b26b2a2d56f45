// Collectives on GPU memory through pinned host memory and a backend of the CPU: for ranks that share a GPU, that have
// no NCCL, or what NCCL cannot do.
//
// Chunks are pipelined: while one is reduced between the ranks, the next comes from the device and the one before goes
// back. Nothing here waits: copies are asked for on streams of their own, and the engine is rung when one is complete.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "backend/backend.h"
#include "device/gpu.h"

namespace hvd {

// Batches of the host's backend that carry chunks have the number of their process set plus this, and sequence numbers
// of their own.
inline constexpr uint32_t kStagedSets = uint32_t{1} << 31;

struct StagedOptions {
  size_t chunk_bytes = size_t{4} << 20;  // the same on all ranks
  size_t max_pinned_bytes = size_t{64} << 20;
};

class StagedBackend final : public Backend {
 public:
  // `host` executes the batches of host memory. `ring` may be called from any thread, and is not called after the
  // destructor.
  StagedBackend(Backend& host, StagedOptions options, std::function<void()> ring);
  StagedBackend(const StagedBackend&) = delete;
  StagedBackend& operator=(const StagedBackend&) = delete;
  ~StagedBackend() override;

  void remove_process_set(uint32_t id) override;
  std::unique_ptr<Execution> execute(Collective collective, Batch batch) override;

 private:
  class State;
  std::unique_ptr<State> state_;
};

}  // namespace hvd
