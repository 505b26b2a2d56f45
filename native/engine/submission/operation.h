// One submitted operation, from the call to its result. Shared by the caller (as its handle) and the engine.
#pragma once

#include <pthread.h>
#include <sys/types.h>

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "device/gpu.h"
#include "engine/messages/request.h"
#include "transport/shared_region.h"

namespace hvd {

// Memory that the engine allocated because the caller could not know the size.
struct OwnedArray {
  DType dtype = DType::kUInt8;
  Shape shape;
  std::shared_ptr<std::byte[]> data = nullptr;
  // Of memory on a GPU: behind `written` it holds the result, and it is given back in the order of `stream`.
  std::shared_ptr<device::Gpu> gpu = nullptr;
  device::Stream stream = nullptr;
  std::vector<device::SharedEvent> written = {};

  [[nodiscard]] size_t bytes() const { return static_cast<size_t>(num_elements(shape)) * size_of(dtype); }
  [[nodiscard]] int device() const { return gpu == nullptr ? kCpuDevice : gpu->device(); }
};

// Aligned as frameworks like it, and never without an address, even if it is empty.
[[nodiscard]] OwnedArray make_array(DType dtype, Shape shape);

// Keeps what lies in somebody else's hands, such as the tensors of a framework, until it is destroyed: by any thread,
// which may hold a lock, so that must not block.
using Keeper = std::unique_ptr<void, void (*)(void*)>;

// What a caller asks for. Nothing of it changes after submission, but for what the engine takes out: `on_done`,
// `keeper`, and inputs of weight 0.
struct SubmitRequest {
  OpKind kind = OpKind::kAllreduce;
  // The name on the wire is <prefix>.<name>, or the name alone without a prefix. Without a name the engine counts:
  // ranks must then submit in one order.
  std::string prefix = {};
  std::optional<std::string> name = {};
  // An alltoall takes one input, or one for each member.
  Buffers inputs = {};
  // An allgather and an alltoall may go without; then the engine allocates the results. Or the caller gives, for each
  // input of an allgather and for an alltoall, one output that holds the rows of all members in rank order, or one
  // output for each member.
  Buffers outputs = {};
  ReduceOp reduce_op = ReduceOp::kSum;
  // Of an allreduce by Sum or Average: how values of floating point travel between hosts. With kAuto submission
  // chooses; then it is kNone for whatever cannot be quantized, and residuals are not touched.
  Quantization quantization = Quantization::kNone;
  // Of a quantized allreduce, none or one for each input: float32 values of as many elements, which are added to what
  // this rank gives, prescaled, and are left with what did not reach the result, over all ranks together. Not touched
  // inside of a host, where nothing is lost, nor for inputs that are not floating point.
  std::vector<Buffer> residuals = {};
  double prescale = 1.0;
  double postscale = 1.0;
  std::optional<double> weight = {};                // of this rank's values in a weighted average; 0: not read
  int32_t root = -1;                                // global rank; of a send the receiver, of a receive the sender
  std::optional<std::vector<int64_t>> splits = {};  // alltoall: rows for each member; none: equally many
  // allgather of one input, and alltoall: rows from each member, a mismatch if others come. None: as the outputs say,
  // and equally many where one output holds those of all members.
  std::optional<std::vector<int64_t>> received_splits = {};
  std::vector<int64_t> ranks = {};           // add_process_set: its members; remove_process_set: its engine id,
                                             // and `by_members` the members behind it; share_memory: how many
                                             // bytes
  bool by_members = false;                   // a process set comes or goes by agreement of its members
  int32_t tag = 0;                           // of a send and the receive that it meets
  bool divide_by_initial_world_size = true;  // join: what Average divides by until all ranks have joined
  uint32_t process_set = 0;
  int32_t priority = 0;        // what has more goes first
  int device = kCpuDevice;     // of a join, to take part with; other operations have that of their tensors
  bool waits_next = false;     // the caller waits at once
  bool gathers = false;        // the caller may submit more before it waits: this need not begin at once
  std::string call_site = {};  // "file:line" of the user's call
  // Called once when the operation is done, also if it failed, but not if submit() threw. By whichever thread drives
  // the engine, which holds no lock then: it may submit, but must not block, nor drop the last reference to the engine.
  std::function<void()> on_done = {};
  // Of the memory of inputs and outputs. The engine lets go of it when nothing will touch that memory any more: before
  // the operation is done, unless a device goes on. With a device that hangs it stays for ever.
  Keeper keeper = {nullptr, nullptr};
};

// Written by the engine before it completes the operation, read by the caller afterward.
struct OperationResult {
  std::vector<OwnedArray> arrays;  // that the engine allocated
  std::vector<int64_t> received_splits;
  uint32_t new_process_set = 0;  // add_process_set: its engine id
  int last_joined = -1;          // join: the global rank that joined last
  int source = -1;               // recv: the set rank of the sender
};

// Used by the engine alone.
struct OperationState {
  int set_rank = 0;
  uint64_t digest = 0;
  std::vector<int64_t> splits;    // alltoall: rows for each member
  std::vector<int64_t> expected;  // allgather of each tensor, alltoall: rows from each member; empty: any
  int32_t priority = 0;           // that the ranks agreed on
  std::optional<uint32_t> announced_id;
  int executions_left = 0;               // that callers wait for
  int executions_unended = 0;            // of which some are only left to the device
  uint64_t place = 0;                    // in shared memory
  int peer = -1;                         // of a transfer that is executed: the set rank of the other end
  std::shared_ptr<SharedRegion> region;  // that holds all inputs, which are the outputs, of an allreduce
  bool stands_in = false;  // made by the engine while the caller has joined: neutral values, results for nobody
  std::vector<OwnedArray> scratch;
  TimePoint submitted{};
};

// What a device has to do with an operation whose tensors it holds.
class DeviceWork {
 public:
  int device = kCpuDevice;                 // of the tensors; of a join, that the rank takes part with
  std::vector<device::SharedEvent> ready;  // behind these, the tensors may be touched
  // Callers go on as soon as the work is in a stream: behind these it is done.
  std::vector<device::SharedEvent> finished;

  // Whether it has done with the memory. False for ever if nobody can tell. Throws no error.
  [[nodiscard]] bool ended() const;
  // Why what the device still had to do failed after the operation was done, if it did.
  [[nodiscard]] std::optional<Error> error() const;

  // After the operation was completed or failed.
  void settle();
  // The device may still be at work until `finished`, or nobody knows until when.
  void settle_with(const Error& error, bool known_end);

 private:
  enum class State : uint8_t { kBusy, kSettled, kFailed, kLost };

  std::atomic<State> state_{State::kBusy};
  std::optional<Error> error_;
};

class Operation {
 public:
  Operation() = default;
  explicit Operation(SubmitRequest wanted) : request(std::move(wanted)) {}
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;
  ~Operation();

  SubmitRequest request;
  RequestSpec spec;  // what the ranks must agree on, which submit() takes from the request
  OperationResult result;
  OperationState state;
  DeviceWork gpu;

  // Some caller has waited for a while, and still does or will again.
  std::atomic<bool> waited_long{false};
  // The thread that waits now, by pthread_self(); 0 if none. Of several, one.
  std::atomic<uint64_t> waiter{0};
  // The same as the system calls it, once it has waited for a while.
  std::atomic<pid_t> slow_waiter{0};

  [[nodiscard]] bool done() const { return ended_.load(std::memory_order_acquire) == kDone; }

  // Sleeps until the operation is done or the time is over; returns whether it is done.
  bool wait_done(Duration timeout) const;

  // Whether the values of this rank do not count in a weighted average.
  [[nodiscard]] bool has_no_weight() const {
    return spec.weighted && !state.stands_in && request.weight.value_or(1.0) == 0.0;
  }

  // The error it ended with, if it did. Only after done().
  [[nodiscard]] const std::optional<Error>& error() const { return error_; }

  // Whether a device, too, has done with the memory, or never had to do with it. False for ever if nobody can tell.
  // Throws no error.
  [[nodiscard]] bool settled() const { return done() && device_has_ended(); }
  [[nodiscard]] bool device_has_ended() const;

  // Calls once the operation is done, or now if it is. By whichever thread ends it, which may hold the engine's lock:
  // it must not block, nor call the engine. Returns false if another call is due.
  using Notice = std::function<void()>;
  [[nodiscard]] bool notify(Notice notice);
  // Whether somebody wants to hear of the end, though no thread may wait for it.
  [[nodiscard]] bool is_followed() const { return request.on_done || has_notice(); }

  // The first call decides; later ones change nothing.
  void complete();
  void fail(const Error& error);

 private:
  static constexpr uint32_t kPending = 0;
  static constexpr uint32_t kAwaited = 1;  // pending, and a thread sleeps until it is done, or did
  static constexpr uint32_t kDone = 2;

  void finish();
  [[nodiscard]] static Notice& told();
  [[nodiscard]] bool has_notice() const {
    const Notice* notice = notice_.load(std::memory_order_acquire);
    return notice != nullptr && notice != &told();
  }

  mutable std::atomic<uint32_t> ended_{kPending};  // a waiter marks it
  std::atomic<Notice*> notice_{nullptr};           // or told(), behind the end
  std::optional<Error> error_;
};

// The calling thread waits for the operation until it is done, though it may return from Engine::wait to look for
// signals.
class Waiting {
 public:
  explicit Waiting(Operation& operation) : operation_(operation) {
    operation_.waiter.store(pthread_self(), std::memory_order_relaxed);
  }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;
  ~Waiting() {
    operation_.waiter.store(0, std::memory_order_relaxed);
    operation_.slow_waiter.store(0, std::memory_order_relaxed);
  }

 private:
  Operation& operation_;
};

// Of an operation whose memory a device that hangs may write to at any time.
void keep_for_ever(std::shared_ptr<Operation> operation);

}  // namespace hvd
