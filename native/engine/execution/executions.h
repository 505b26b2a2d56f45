// Batches on their way, from the answer of a coordinator to the end of their operations. For the thread that drives.
//
// On GPUs, callers go on as soon as a collective is on its stream. The execution stays here until the device is done,
// so that failures and the stall check see it, and says when memory is free.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/devices/operation_devices.h"
#include "engine/execution/backends.h"
#include "engine/execution/completion.h"
#include "engine/execution/room.h"
#include "engine/execution/set_members.h"
#include "engine/execution/shared_arrays.h"
#include "engine/execution/tuning.h"
#include "engine/messages/control.h"
#include "engine/messages/job_info.h"
#include "engine/submission/counters.h"
#include "engine/timeline/observer.h"
#include "transport/transport.h"

namespace hvd {

class Executions {
 public:
  using Operations = std::vector<std::shared_ptr<Operation>>;

  struct Active {
    SetMembers* set;
    std::unique_ptr<Execution> execution;
    Operations operations;
    TimePoint started{};
    size_t bytes = 0;
    int32_t priority = 0;
    bool handed_over = false;  // callers go on; the rest is left to a device

    // Whether it gets what room there is before the other one.
    [[nodiscard]] bool goes_before(const Active& other) const {
      if (priority != other.priority) return priority > other.priority;
      return bytes <= kSmallBatchBytes && other.bytes > kSmallBatchBytes;
    }
  };

  // The parts that it works with.
  struct Neighbors {
    const JobInfo& job;
    Transport& transport;
    const ControlPlane& control;
    OperationDevices& devices;
    Observer& observer;
    Completion& completion;
    Counters& counters;
  };

  Executions(Neighbors neighbors, Backends backends, Tuning& tuning);

  void add_process_set(uint32_t id, const std::vector<int>& members);
  void remove_process_set(uint32_t id);

  // What all members execute together now: `operations` are those that the response names, or what stands in for them.
  void execute(SetMembers& set, const Operations& operations, const Response& response);
  // What this rank sends to the member `peer`, or receives from it.
  void transfer(SetMembers& set, const std::shared_ptr<Operation>& operation, int peer);
  // Does what can be done without waiting; returns whether anything was done.
  bool advance();
  // A rank that an execution waits for, though its connection broke. Throws Error (kShutDown) for one that said
  // goodbye.
  [[nodiscard]] std::optional<int> missing_peer() const;

  // What is executed now, that which goes first in front.
  [[nodiscard]] const std::vector<Active>& active() const { return active_; }
  [[nodiscard]] bool uses(uint32_t set) const;
  // What may start now for a set: batches of a higher priority, and small ones, only wait for their like.
  [[nodiscard]] Room room_of(const SetMembers& set) const;
  // Whether something goes on by itself; what is left to a device rings when it does.
  [[nodiscard]] bool has_work() const;
  // On the engine's clock, of any of them.
  [[nodiscard]] TimePoint last_progress() const { return last_progress_; }
  // How often advance() did anything.
  [[nodiscard]] uint64_t num_advances() const { return num_advances_; }
  [[nodiscard]] SharedArrays& shared_arrays() { return shared_arrays_; }

  // All fail. Peers cannot write into their memory any more.
  void fail(const Error& error);
  // Lets go of what moves the data.
  void release() { backends_ = {}; }
  // After a failure: frees what devices have done with meanwhile. `all`: what they have not is let go of, too.
  void look_for_ended_devices(bool all = false);
  // The last collectives of a job that ends well may still be under way, though no caller of this rank waits: on
  // devices, for a rank that had joined, or because it needs no result. Other ranks take part in them.
  [[nodiscard]] bool last_have_ended();
  // Whether to look again at them, though nothing rings.
  [[nodiscard]] bool awaits_last() const { return last_awaited_.has_value(); }
  [[nodiscard]] bool has_left_to_devices() const { return !left_to_devices_.empty(); }

 private:
  // Sends to, and receives from, one rank in one process set.
  struct PairTransfers {
    size_t num_active = 0;
    std::deque<std::shared_ptr<Operation>> waiting = {};
  };

  // Batches (batches.cc)
  [[nodiscard]] Batch batch_of(SetMembers& set, const Operations& operations, DType dtype,
                               const Response& response) const;
  void place_on_gpu(const Operations& operations, const Response& response, Batch& batch) const;
  void start_fused(SetMembers& set, const Operations& operations, const Response& response);
  [[nodiscard]] std::vector<Extent> place_rows(Operation& operation, size_t tensor,
                                               const std::vector<int64_t>& rows) const;
  void start_allgather(SetMembers& set, const std::shared_ptr<Operation>& operation, const Response& response);
  void start_alltoall(SetMembers& set, const std::shared_ptr<Operation>& operation, const Response& response);
  void start_reducescatter(SetMembers& set, const std::shared_ptr<Operation>& operation, const Response& response);
  [[nodiscard]] Backend& backend_for(const Operation& operation);

  // Transfers (transfers.cc)
  void start_transfers(SetMembers& set, int peer, PairTransfers& pair);
  void end_transfer(const Active& active);
  void start_waiting_transfers();
  void fail_waiting_transfers(const Error& error);

  void start(SetMembers& set, std::unique_ptr<Execution> execution, Operations operations);
  void hand_over(Active& active);
  void end(const Active& active);
  void give_up_on_devices(const Error& error);

  const Neighbors with_;
  Backends backends_;
  Tuning& tuning_;
  SharedArrays shared_arrays_;
  std::vector<Active> active_;
  std::map<std::pair<uint32_t, int>, PairTransfers> transfers_;  // by process set, and set rank of the other end
  std::vector<std::pair<SetMembers*, int>> ended_transfers_;     // likewise: others wait for their place
  TimePoint last_progress_{};
  uint64_t num_advances_ = 0;
  std::vector<std::shared_ptr<Operation>> left_to_devices_;  // after a failure
  std::optional<TimePoint> last_awaited_;                    // since when the end of this engine waits for them
};

}  // namespace hvd
