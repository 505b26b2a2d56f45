// The engine of one rank: takes operations, agrees on them with the other ranks, executes them.
//
// It is made of parts, each with its own members and, where threads meet, its own lock: submission (what callers hand
// over), agreement (process sets, negotiation), execution, devices, watch (stalls), timeline, and driver, which lets
// one thread at a time do a pass over the others.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "engine/devices/operation_devices.h"
#include "engine/driver/driver.h"
#include "engine/messages/control.h"
#include "engine/messages/job_info.h"
#include "engine/options.h"
#include "engine/submission/automatic_quantization.h"
#include "engine/submission/counters.h"
#include "engine/submission/submission.h"
#include "engine/timeline/observer.h"
#include "engine/watch/position.h"
#include "transport/transport.h"

namespace hvd {

class Engine {
 public:
  Engine(TransportParts parts, const EngineOptions& options);
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;
  ~Engine();

  [[nodiscard]] int rank() const { return job_.rank; }
  [[nodiscard]] int size() const { return job_.size; }
  // Whether all ranks are on this host.
  [[nodiscard]] bool all_local() const { return all_local_; }

  // What Quantization::kAuto means for tensors on the CPU in a process set of this rank; the same on all its members.
  // Throws Error (kUsage) if this rank is not a member, or the set was removed.
  [[nodiscard]] Quantization automatic_quantization(uint32_t set, const std::string& what = "compression");

  // Hands an operation over. Throws Error if its request is not valid.
  void submit(const std::shared_ptr<Operation>& operation);
  // What a caller must do that submitted with `waits_next` and does not wait: lets the engine's thread take over.
  void wake();

  // This rank will submit nothing more to the process set, and waits for nobody: what it has submitted goes on, and the
  // set ends when all members have left it. What other members submit without this rank fails. Throws Error (kUsage) if
  // this rank cannot submit to the set, or if it is that of all ranks. Does nothing if the engine has failed or ended.
  void leave_process_set(uint32_t set, std::string call_site);
  // The operation has taken longer than its caller allows, for which `text` has words. Everything fails, on all ranks,
  // with an Error (kStalled) that begins with the text and names the ranks that are missing. Does not wait for that,
  // and does nothing if the operation ends first.
  void give_up(const std::shared_ptr<Operation>& operation, std::string text);

  // Whether submit() finds the GPU ready. If not, it may take long: it loads libraries.
  [[nodiscard]] bool knows_device(int index) const { return devices_.knows(index); }
  // A stream of a GPU goes on only behind the operation, which is done. Throws Error (kUsage) if it is not, or on
  // another GPU, and what the device failed with.
  void order(const Operation& operation, int device, device::Stream stream) const;

  // Returns whether the operation is done; waits for it at most for `timeout`, driving the engine if nobody else does.
  // Calls what other operations want to have called when they are done.
  bool wait(Operation& operation, Duration timeout);
  // The same for a caller that does not come back: the operation does not keep it from going on.
  bool wait_once(Operation& operation, Duration timeout) { return driver_.wait(operation, timeout); }

  // Why nothing works any more, if so.
  [[nodiscard]] std::optional<Error> error() const { return submission_.failure(); }
  [[nodiscard]] EngineStatistics statistics() const;

  // Tells the peers, fails what is pending, joins the thread. Idempotent.
  void close(const std::string& reason);

  // What this rank says of itself when others miss it; an adapter's thread feeds it.
  [[nodiscard]] Position& position() { return position_; }

  // On rank 0: from now on all ranks record what they do, and this one writes it into a file. Another timeline ends
  // before; one of the same path goes on. Other ranks do nothing. Throws Error (kUsage) if the file cannot be written.
  void start_timeline(const std::string& path, bool mark_cycles);
  // Returns when all records are in the file.
  void stop_timeline();
  // The same for somebody who watches the job: gives way to a timeline of the program, which neither ends nor is ended
  // by it otherwise. Throws Error (kUsage) if there is a timeline or trace already.
  void start_trace(const std::string& path);
  // Returns whether the trace ran until now.
  [[nodiscard]] bool stop_trace();

  // Must be called in the child of a fork, where the engine's thread does not exist: drops what belongs to the parent.
  void abandon();

 private:
  const JobInfo job_;
  const bool all_local_;
  const bool quantizes_;
  Counters counters_;
  std::unique_ptr<Transport> transport_;  // until the engine is closed, as the next
  std::unique_ptr<ControlPlane> control_;
  const std::shared_ptr<NcclFinder> nccl_finder_;  // if there may be tensors on GPUs
  OperationDevices devices_;
  Submission submission_;
  AutomaticQuantization automatic_quantization_;
  Observer observer_;
  Position position_;
  Driver driver_;
  std::atomic<bool> abandoned_{false};
  std::mutex close_mutex_;
};

}  // namespace hvd
