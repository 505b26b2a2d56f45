// Copies between a device and pinned host memory: the streams they go through, whose turn it is to take memory, and
// who keeps memory that copies still use.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "backend/bell.h"
#include "base/clock.h"
#include "device/gpu.h"

namespace hvd::staged {

using Block = std::shared_ptr<std::byte[]>;

// What executions on a device share. Belongs to the thread that drives the engine.
struct Site {
  Site(std::shared_ptr<device::Gpu> of, size_t block_bytes, size_t max_blocks);
  Site(const Site&) = delete;
  Site& operator=(const Site&) = delete;
  ~Site();

  std::shared_ptr<device::Gpu> gpu;
  std::shared_ptr<device::PinnedPool> pool;
  std::vector<device::Stream> idle;  // streams that nobody uses
};

// Copies of one execution in one direction, in order. Streams are not shared between executions: the first copy waits
// until the tensors are ready, and nobody else should.
class CopyLane {
 public:
  CopyLane(std::shared_ptr<Site> site, std::shared_ptr<Bell> bell);
  CopyLane(const CopyLane&) = delete;
  CopyLane& operator=(const CopyLane&) = delete;
  ~CopyLane();

  [[nodiscard]] device::Stream stream() const { return copies_; }
  // The point behind all copies until now; it rings when it is reached.
  [[nodiscard]] device::SharedEvent mark();
  // Nothing is queued: others may use the streams.
  void end() { ended_ = true; }

 private:
  std::shared_ptr<Site> site_;
  std::shared_ptr<Bell> bell_;
  device::Stream copies_;
  device::Stream rings_;  // else the next copy would wait until the bell has been rung
  bool ended_ = false;
};

// In which order the executions of a process set take blocks: that of their construction, the same on all ranks, so
// that no two ranks wait for each other with their blocks in different executions. A set that has none gets one even if
// the pool is used up, so neither do sets, which have no order among each other.
class BlockQueue {
 public:
  void enter(const void* execution) { waiting_.push_back(execution); }
  void leave(const void* execution) { std::erase(waiting_, execution); }
  // A block, or nullptr if it is another's turn or there is none.
  [[nodiscard]] Block try_take(const void* execution, device::PinnedPool& pool);

 private:
  std::deque<const void*> waiting_;
  std::shared_ptr<std::atomic<size_t>> num_held_ = std::make_shared<std::atomic<size_t>>(0);
};

// Keeps memory of executions that ended before their copies did.
class Keeper {
 public:
  Keeper() = default;
  Keeper(const Keeper&) = delete;
  Keeper& operator=(const Keeper&) = delete;
  ~Keeper() { wait(); }

  // Until all that is in the stream now is done.
  void keep(device::Gpu& gpu, device::Stream stream, std::vector<Block> blocks);
  // Until all copies have ended; 2 s at most, and not again after a wait that was in vain.
  void wait();

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    size_t num_kept = 0;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
  bool hopeless_ = false;
};

}  // namespace hvd::staged
