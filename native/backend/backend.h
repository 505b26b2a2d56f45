// What moves the data. A backend offers every collective or is not offered at all: each of them has a switch over
// Collective without a default, so that the compiler names the places where a new one is missing.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/buffer.h"
#include "base/quantization.h"
#include "device/gpu.h"
#include "plan/collective.h"

namespace hvd {

// A run of elements in memory.
struct Extent {
  std::byte* data = nullptr;
  int64_t count = 0;
};

// What the members of a process set execute together. Several tensors form one logical vector: its elements lie in the
// extents one after the other, so tensors need not be copied into one buffer to travel together.
struct Batch {
  uint32_t set = 0;
  uint32_t sequence = 0;     // the same on all members; no other batch of the set has it
  std::vector<int> members;  // global ranks by set rank
  int set_rank = 0;

  DType dtype = DType::kUInt8;
  ReduceOp op = ReduceOp::kSum;                     // never Average: that is Sum and a divisor
  double prescale = 1.0;                            // applied to what this rank gives
  int divisor = 1;                                  // of a Sum: the number of ranks that an average divides it by
  double postscale = 1.0;                           // applied to the reduced value, after the division
  Quantization quantization = Quantization::kNone;  // how values of floating point travel between hosts
  // Of a quantized allreduce: for each input float32 values that are added to it, prescaled, and are left with what
  // did not reach the result, over all ranks together. Without data: none. Empty: none of any input.
  std::vector<Extent> residuals;
  bool prescaled = false;  // whether any member may have another prescale than 1; the same on all members
  std::vector<Extent> inputs;
  std::vector<Extent> outputs;
  int root = 0;  // of a broadcast, by set rank
  // By set rank: the elements that it ends with (reduce and scatter) or gives (allgather).
  std::vector<int64_t> counts;
  std::vector<std::vector<int64_t>> splits;  // of an alltoall: splits[s][d] elements from set rank s to set rank d
  // Of an allreduce in place, if every member's inputs lie in memory that all members see: where each set rank's are.
  std::vector<std::vector<Extent>> reachable;

  // Of tensors on GPUs: the index of the device of each set rank, and this rank's. Extents lie there.
  std::vector<int> devices;
  std::shared_ptr<device::Gpu> gpu;
  std::vector<device::SharedEvent> ready;  // behind these, inputs may be read and outputs written
  std::string what;                        // for messages: "allreduce.grad.0", or "allreduce.grad.0 and 16 others"

  [[nodiscard]] bool on_gpu() const { return gpu != nullptr; }
  // An average of integers is exact, but their sum may not fit into the dtype: no partial sums of it may travel.
  [[nodiscard]] bool averages_integers() const { return divisor != 1 && !is_floating(dtype) && dtype != DType::kBool; }
};

// A batch that is being executed, by the thread that drives the engine. Memory stays valid until it is done.
class Execution {
 public:
  Execution() = default;
  Execution(const Execution&) = delete;
  Execution& operator=(const Execution&) = delete;
  virtual ~Execution() = default;

  // Does what can be done without waiting; returns whether anything was done.
  virtual bool advance() = 0;
  [[nodiscard]] virtual bool done() const = 0;
  // Whether callers may go on: what is left happens on a device, behind `finished()`. advance() must be called until
  // done() even so, and throws if the device or the library fails.
  [[nodiscard]] virtual bool handed_over() const { return done(); }
  // Of batches on a GPU, once handed over: the point in a stream behind which outputs are valid and memory is free.
  [[nodiscard]] virtual device::SharedEvent finished() const { return nullptr; }
  // Of batches on a GPU that are not handed over when all is given up: whether a device may still be at work with the
  // memory, which is never freed then.
  [[nodiscard]] virtual bool may_be_on_device() const { return !done(); }
  // Whether nothing more can be done before this global rank sends or reads.
  [[nodiscard]] virtual bool waits_for(int rank) = 0;
  // The same of a rank that has left, of which nothing more is on its way that the engine knows of.
  [[nodiscard]] virtual bool gives_up_on(int rank) { return waits_for(rank); }
};

class Backend {
 public:
  Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;
  virtual ~Backend() = default;

  // Called where all ranks agree, in the same order, on a set that this rank is in; 0 is the set of all ranks.
  virtual void add_process_set(uint32_t /*id*/, const std::vector<int>& /*members*/) {}
  virtual void remove_process_set(uint32_t /*id*/) {}
  // A rank was lost, or the job failed in another way: from now on nothing may wait for other ranks.
  virtual void give_up(const std::string& /*reason*/) {}
  // Whether it makes use of Batch::reachable.
  [[nodiscard]] virtual bool reduces_in_shared_memory() const { return false; }

  // Begins to execute what all members of the set execute. Throws Error (kInternal) for what the batch does not allow.
  virtual std::unique_ptr<Execution> execute(Collective collective, Batch batch) = 0;
};

}  // namespace hvd
