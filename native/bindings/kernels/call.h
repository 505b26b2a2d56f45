// A collective as a framework's kernel calls it: what is fixed when the kernel is made, and one run of it, from the
// framework's call to the moment when the framework hears of the end. What frameworks differ in is virtual in Run.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bindings/c_interface.h"
#include "bindings/kernels/failure.h"
#include "bindings/kernels/jobs.h"
#include "plan/collective.h"

namespace hvd::kernels {

// What the calling thread does until the operation is done.
enum class Waits : uint8_t {
  kNot,        // the engine's callback ends the run
  kBriefly,    // likewise, but nothing else can happen meanwhile, so the thread drives the engine for a moment
  kUntilDone,  // and ends the run itself; a signal ends its wait
};

// What is fixed when a kernel is made, or a program is compiled.
struct Call {
  OpKind kind = OpKind::kAllreduce;
  bool grouped = false;
  std::string name;  // empty: the operations without a name are counted
  int64_t job = 0;
  int64_t process_set = 0;  // by the number that users see
  Waits waits = Waits::kNot;
  std::string call_site;
  ReduceOp reduce_op = ReduceOp::kSum;
  int32_t quantization = 0;  // of an allreduce: hvd::Quantization
  // Of an allreduce with error feedback: the tensors begin with so many residuals, float32, and the rank that has kept
  // them, int32. The results begin with what this rank keeps now, and with this rank. Of another rank's residuals
  // nothing is taken: together those of all ranks are the error of the job, and a copied state must not count twice.
  int64_t num_residuals = 0;
  double prescale = 1.0;
  double postscale = 1.0;
  std::optional<double> weight;  // of this rank's values in a weighted average
  int32_t priority = 0;          // what has more goes first
  int root = 0;                  // global rank
  bool equal_splits = false;     // of an alltoall: all members get the same number of rows
};

// "allreduce", "grouped_allgather", ...: the first word of names on the wire.
[[nodiscard]] std::string prefix_of(const Call& call);

[[nodiscard]] Failure not_initialized(int64_t job);

// One run of a call. It keeps itself alive until the engine has done with the tensors' memory. Made by make_shared; a
// framework's class calls start() once, and everything else happens in the virtual functions, on whatever thread.
class Run : public std::enable_shared_from_this<Run> {
 public:
  // `call` must live until end() or leave() was called.
  explicit Run(const Call& call) : call_(call), waits_(call.waits) {}
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;
  virtual ~Run();

  void start();

 protected:
  // Takes references to the input tensors; of an alltoall also the splits, unless they are equal. Whoever returns false
  // has reported why.
  [[nodiscard]] virtual bool hold_inputs(std::vector<int64_t>& splits) = 0;
  // Then, for those of which the caller gives the memory of results: an output like the input, in place if the
  // framework likes, or of this shape.
  [[nodiscard]] virtual bool allocate_like_input(int index) = 0;
  [[nodiscard]] virtual bool allocate(int index, const std::vector<int64_t>& shape) = 0;
  // Then the memory, valid until end().
  [[nodiscard]] virtual std::vector<HvdBuffer> inputs() const = 0;
  [[nodiscard]] virtual std::vector<HvdBuffer> outputs() const = 0;
  // Appended to the name: several runs of a call may be in flight at once, as in a loop.
  [[nodiscard]] virtual std::string name_suffix() const { return ""; }

  // Once the operation is done: memory that the engine allocated, to be given back with interface().release_memory().
  virtual void give_result(int index, const HvdBuffer& memory, void* reference) = 0;
  // The received splits of an alltoall, or the rank that joined last.
  virtual void give_integers(int index, const std::vector<int64_t>& values, bool scalar) = 0;

  virtual void fail(const Failure& failure) = 0;
  // The last call, by the engine's callback or the calling thread: lets the tensors go, then tells the framework.
  virtual void end() = 0;
  // The last call if a signal ended the wait: the tensors stay until this object is destroyed.
  virtual void leave() = 0;

  [[nodiscard]] const Call& call() const { return call_; }
  [[nodiscard]] const HvdInterface& interface() const { return *interface_; }
  // Known when the inputs are to be held.
  [[nodiscard]] const Members& members() const { return members_; }
  // For messages.
  [[nodiscard]] std::string who() const;

 private:
  [[nodiscard]] bool find_members();
  [[nodiscard]] bool allocate_outputs();
  [[nodiscard]] bool take_residuals(std::vector<HvdBuffer>& given, std::vector<HvdBuffer>& taken,
                                    std::vector<HvdBuffer>& residuals);
  [[nodiscard]] bool prepare();
  void submit();
  void give_results();

  const Call& call_;
  const Waits waits_;
  const HvdInterface* interface_ = nullptr;
  std::shared_ptr<const Job> job_;
  Members members_;
  std::vector<int64_t> splits_;
  HvdOperation* operation_ = nullptr;
  std::shared_ptr<Run> kept_;  // itself, while the engine has its address
};

}  // namespace hvd::kernels
