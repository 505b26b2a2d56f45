// One submitted operation, from the call to its result. Shared by the caller (as its handle) and the engine.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "engine/request.h"
#include "transport/shared_region.h"

namespace hvd {

// Memory that the engine allocated because the caller could not know the size.
struct OwnedArray {
  DType dtype = DType::kUInt8;
  Shape shape;
  std::shared_ptr<std::byte[]> data;
};

// Aligned as frameworks like it, and never without an address, even if it is empty.
[[nodiscard]] OwnedArray make_array(DType dtype, Shape shape);

class Operation {
 public:
  // What to do; not changed after submission.
  RequestSpec spec;
  uint32_t set = 0;
  int set_rank = 0;
  uint64_t digest = 0;
  std::vector<Buffer> inputs;
  std::vector<Buffer> outputs;
  bool has_splits = false;
  std::vector<int64_t> splits;  // alltoall: rows for each member
  double weight = 1.0;          // of this rank's values, if the request is weighted
  int32_t priority = 0;         // what has more goes first
  bool waited_for = false;      // the caller waits from the start
  std::string call_site;        // "file:line" of the user's call
  // Called once when the operation is done, also if it failed, but not if submit() threw. By whichever thread drives
  // the engine, which holds no lock then: it may submit, but must not block, nor drop the last reference to the engine.
  std::function<void()> on_done;

  // Written by the engine before it completes the operation, read by the caller afterwards.
  std::vector<OwnedArray> results;
  std::vector<int64_t> received_splits;
  uint32_t new_process_set = 0;  // add_process_set: its engine id
  int last_joined = -1;          // join: the global rank that joined last

  // Used by the engine alone.
  std::optional<uint32_t> announced_id;
  int executions_left = 0;
  uint64_t place = 0;                    // in shared memory
  std::shared_ptr<SharedRegion> region;  // that holds all inputs, which are the outputs, of an allreduce
  bool stands_in = false;  // made by the engine while the caller has joined: neutral values, results for nobody
  std::vector<OwnedArray> scratch;
  TimePoint submitted{};

  // Some caller has waited for a while, and still does or will again.
  std::atomic<bool> waited_long{false};

  [[nodiscard]] bool done() const { return state_.load(std::memory_order_acquire) != kPending; }

  // Sleeps until the operation is done or the time is over; returns whether it is done.
  bool wait_done(Duration timeout) const;

  // The error it ended with, if it did. Only after done().
  [[nodiscard]] const std::optional<Error>& error() const { return error_; }

  // The first call decides; later ones change nothing.
  void complete();
  void fail(const Error& error);

 private:
  static constexpr uint32_t kPending = 0;
  static constexpr uint32_t kDone = 1;

  void finish();

  std::atomic<uint32_t> state_{kPending};
  std::optional<Error> error_;
};

}  // namespace hvd
