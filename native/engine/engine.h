// The engine of one rank: takes operations, agrees on them with the other ranks, executes them.
//
// The engine is a state machine that is driven by one thread at a time, the one that holds `drive_mutex_`: its own
// thread, which sleeps in epoll while there is nothing to do, or a caller that waits for its operation and spares the
// switch to another thread. Submission only touches a queue.
//
// Failure: the loss of a peer, or an error that cannot be put on one operation, fails everything that is pending here
// and all that is submitted later, and is told to the other ranks, so that all report the same first cause.
#pragma once

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "backend/backend.h"
#include "backend/gpu/gpu_backend.h"
#include "base/clock.h"
#include "base/log.h"
#include "engine/autotuner.h"
#include "engine/control.h"
#include "engine/devices.h"
#include "engine/operation.h"
#include "engine/position.h"
#include "engine/process_set.h"
#include "engine/step_marker.h"
#include "engine/timeline_session.h"
#include "plan/cost.h"
#include "transport/transport.h"

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
  uint64_t direct_batches = 0;  // reduced where they lie in shared memory
  uint64_t gpu_batches = 0;     // on GPUs
  uint64_t nccl_batches = 0;    // of these: given to NCCL
};

class Engine {
 public:
  Engine(TransportParts parts, EngineOptions options);
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;
  ~Engine();

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }

  // Hands an operation over. Throws Error if its request is not valid.
  void submit(const std::shared_ptr<Operation>& operation);

  // What a caller must do that submitted with `waits_next` and does not wait: lets the engine's thread take over.
  void wake();

  // Whether submit() finds the GPU ready. If not, it may take long: it loads libraries.
  [[nodiscard]] bool knows_device(int index) const;
  // A stream of a GPU goes on only behind the operation, which is done. Throws Error (kUsage) if it is not, or on
  // another GPU, and what the device failed with.
  void order(const Operation& operation, int device, device::Stream stream) const;

  // Returns whether the operation is done; waits for it at most for `timeout`, driving the engine if nobody else does.
  // Calls what other operations want to have called when they are done.
  bool wait(Operation& operation, Duration timeout);
  // The same for a caller that does not come back: the operation does not keep it from going on.
  bool wait_once(Operation& operation, Duration timeout);

  // Whether all ranks are on this host.
  [[nodiscard]] bool all_local() const { return all_local_; }

  // Why nothing works any more, if so.
  [[nodiscard]] std::optional<Error> error() const;
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

  // Must be called in the child of a fork, where the engine's thread does not exist: drops what belongs to the parent.
  void abandon();

 private:
  struct Active {
    ProcessSet* set;
    std::unique_ptr<Execution> execution;
    std::vector<std::shared_ptr<Operation>> operations;
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

  // To start a timeline, or to stop it if there is no writer.
  struct TimelineCommand {
    struct Done {
      Operation operation;  // what the caller waits for
      std::unique_ptr<TimelineWriter> ended;
    };
    std::unique_ptr<TimelineWriter> writer;
    uint32_t run = 0;
    std::shared_ptr<Done> done;
  };

  // What submitters need to know of a process set.
  struct Membership {
    std::vector<int> members;
    int set_rank = -1;
    std::unordered_map<std::string, std::string> names_in_flight;  // and the call site of each
    bool closing = false;                                          // its removal has been submitted here
    uint64_t num_unnamed = 0;                                      // operations since the last join
    uint64_t num_joins = 0;
  };
  // A question to other ranks where they are, and what to do with the answers.
  struct Inquiry {
    enum class Purpose : uint8_t { kDeadlock, kDeadlockEnds, kStall, kStallEnds, kCoordinator, kStuck };
    Purpose purpose = Purpose::kStall;
    uint32_t set = 0;
    std::vector<Stall> stalls;
    std::string headline;
    bool executing = false;                                // the operation is being executed
    std::map<int, std::optional<PositionReport>> answers;  // by global rank
    TimePoint until;
  };

  void describe(Operation& operation);
  // The number of the next operation of a process set that has no name; the same on ranks that submit in one order.
  [[nodiscard]] uint64_t next_number(uint32_t set);
  [[nodiscard]] Membership& membership_of(const Operation& operation);
  void refuse_if_ended(const Operation& operation) const;
  void check_submission(Operation& operation, Membership& set);
  bool take_submissions();
  void announce_submission(const std::shared_ptr<Operation>& operation,
                           std::map<uint32_t, std::vector<Announcement>>& announcements);
  [[nodiscard]] std::string name_of_rank(int rank) const;
  [[nodiscard]] ProcessSet& set_of(uint32_t id);
  [[nodiscard]] std::unique_ptr<Backend> make_backend();

  // Tensors on GPUs (engine_devices.cc)
  [[nodiscard]] std::unique_ptr<GpuBackend> make_gpu_backend();
  [[nodiscard]] int device_to_join_with(int named);
  void prepare_device(Operation& operation);
  [[nodiscard]] std::shared_ptr<EngineDevice> device_of(const Operation& operation) const;
  [[nodiscard]] OwnedArray make_result(const Operation& operation, const Buffer& like, int64_t num_rows) const;
  void place_on_gpu(const std::vector<std::shared_ptr<Operation>>& operations, const Response& response,
                    Batch& batch) const;
  [[nodiscard]] Backend& backend_for(const Operation& operation);
  void hand_over(Active& active);
  void give_up_on_devices(const Error& error);
  void look_for_ended_devices();
  [[nodiscard]] bool devices_have_ended();

  // Process sets (engine_process_sets.cc)
  void check_new_process_set(const Operation& operation) const;
  void check_removal(const Operation& operation);
  [[nodiscard]] bool may_announce_removal(const Operation& operation) const;
  void make_process_set(uint32_t id, std::vector<int> members);
  void remove_process_set(uint32_t id);
  void leave_process_set(ProcessSet& set, int peer, const std::string& end);
  void agree_on(ProcessSet& set, Operation& operation, const Response& response);

  // Memory that all ranks see (engine_shared_memory.cc)
  void check_shared_memory(const Operation& operation) const;
  void share_memory(Operation& operation);
  void find_place(Operation& operation);
  static void add_reachable(const Operation& operation, const Extent& input, Batch& batch);
  void detach_regions();

  // Driving (engine_driving.cc)
  void run();
  // Does all that can be done without waiting, once; returns whether it did anything. Errors end in fail().
  bool pass();
  bool pass_or_throw();
  void drive(const Operation& operation, TimePoint until);
  static void call(const std::vector<std::function<void()>>& callbacks);
  [[nodiscard]] bool spin(uint32_t seen, Duration at_most, bool gives_way_to_callers);
  [[nodiscard]] bool gives_way() const;
  [[nodiscard]] bool take_drive(std::unique_lock<std::mutex>& lock, const Operation& operation);
  void sleep(uint32_t seen, Duration limit);
  [[nodiscard]] bool expects_events();
  [[nodiscard]] bool thread_has_work() const;
  [[nodiscard]] std::optional<Duration> until_next_check() const;
  [[nodiscard]] std::optional<Duration> until_stall_check() const;
  [[nodiscard]] bool is_closing() const;

  // Negotiation (engine_negotiation.cc)
  bool receive_messages();
  void handle(int peer, const Message& message);
  void announce(ProcessSet& set, int member, Announcement announcement);
  void send_announcements(ProcessSet& set, std::vector<Announcement> announcements);
  bool answer_all();
  bool answer(ProcessSet& set);
  [[nodiscard]] Room room_of(const ProcessSet& set) const;
  [[nodiscard]] std::shared_ptr<Operation> take(ProcessSet& set, const NameRef& ref);
  void apply(ProcessSet& set, const Response& response);
  void apply_result(ProcessSet& set, const Response& response);
  void announce_again(ProcessSet& set, uint64_t digest);
  void peer_left(int peer, const std::string& end);

  // Execution (engine_execution.cc)
  void execute(ProcessSet& set, const Response& response);
  void start(ProcessSet& set, std::unique_ptr<Execution> execution, std::vector<std::shared_ptr<Operation>> operations);
  void start_fused(ProcessSet& set, const std::vector<std::shared_ptr<Operation>>& operations,
                   const Response& response);
  void start_allgather(ProcessSet& set, const std::shared_ptr<Operation>& operation, const Response& response);
  void start_alltoall(ProcessSet& set, const std::shared_ptr<Operation>& operation, const Response& response);
  void start_reducescatter(ProcessSet& set, const std::shared_ptr<Operation>& operation, const Response& response);
  [[nodiscard]] Batch batch_of(ProcessSet& set, const std::vector<std::shared_ptr<Operation>>& operations, DType dtype,
                               const Response& response);
  bool advance_executions();
  void end(const Active& active);
  void look_for_missing_peers();
  void finish(Operation& operation, const std::optional<Error>& error = std::nullopt);
  void complete(Operation& operation, const std::optional<Error>& error);

  // Timeline and tuning (engine_observation.cc)
  void record_submission(const Operation& operation);
  void record_announcement(int peer, const Announcement& announcement);
  void record_answer(const Operation& operation, bool failed);
  void record_execution(const Active& active, bool begins);
  void record_device(const Active& active, bool begins);
  void record_end(const Operation& operation);
  void give_timeline_command(TimelineCommand command);
  void follow_timeline_commands();
  [[nodiscard]] bool timeline_has_ended();
  void give_up_timeline(const Error& error);
  void note_step(const ProcessSet& set, const Operation& operation);
  void note_batch(const Active& active);

  // Failure (engine_failure.cc)
  bool look_for_lost_peers();
  [[nodiscard]] Error lost(int peer) const;
  void fail(const Error& error, bool tell_peers);
  void note_cause(const Operation& operation, const Error& error);
  void leave();

  // Stalls: who is missing, and where it is (engine_stalls.cc)
  void check_stalls();
  void check_stalls_of(ProcessSet& set, TimePoint now);
  void check_coordinator_of(ProcessSet& set, TimePoint now);
  void check_stuck_executions(TimePoint now);
  [[nodiscard]] bool watches_stalls() const;
  [[nodiscard]] Duration patience_of(const ProcessSet& set) const;
  void ask(Inquiry inquiry, const std::vector<int>& ranks);
  void note_position(int peer, const Message& message);
  void answer_inquirers(TimePoint now);
  void conclude_inquiry(TimePoint now);
  void report(const Inquiry& inquiry);
  [[nodiscard]] PositionReport silent_position(int peer) const;
  // What this rank, if it coordinates the peer, knows that the peer submitted last; or nothing.
  [[nodiscard]] std::string last_submitted_by(int peer) const;
  [[nodiscard]] PositionReport own_position() const;
  [[nodiscard]] bool is_held(const PositionReport& report) const;
  void look_for_deadlock(ProcessSet& set, TimePoint now);
  void end_deadlock(Inquiry inquiry);

  const int rank_;
  const int size_;
  const EngineOptions options_;
  const bool all_local_;
  const bool core_for_each_rank_;

  const std::shared_ptr<NcclFinder> nccl_finder_;  // if there may be tensors on GPUs, and so the next
  const std::unique_ptr<Devices> devices_;

  mutable std::mutex queue_mutex_;  // guards the next block, and the life of transport_ against submitters
  std::deque<std::shared_ptr<Operation>> queue_;
  std::map<uint32_t, Membership> memberships_;  // by engine id of the set
  struct {
    std::string name;
    std::string call_site;
    TimePoint time;
  } last_submitted_;
  std::set<uint64_t> submitters_;  // threads, by pthread_self()
  uint64_t last_submitter_ = 0;
  std::deque<TimelineCommand> timeline_commands_;
  std::string timeline_path_;  // of the running timeline
  uint32_t timeline_run_ = 0;
  std::optional<Error> failure_;
  std::optional<std::string> closing_;  // why

  std::mutex drive_mutex_;  // guards all that follows
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<ControlPlane> control_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<GpuBackend> gpu_backend_;
  std::map<uint32_t, std::unique_ptr<ProcessSet>> sets_;  // by engine id, which is never used again
  uint32_t next_set_id_ = 1;
  std::map<uint32_t, std::vector<std::pair<int, Message>>> early_messages_;  // of sets that this rank is yet to make
  std::vector<std::shared_ptr<Operation>> removals_;                         // wait until their sets are idle here
  std::vector<std::shared_ptr<Operation>> in_hand_;                          // whose answer is being looked at
  std::vector<Active> active_;                                               // those that go first in front
  std::vector<std::shared_ptr<Operation>> left_to_devices_;                  // after a failure
  std::vector<std::function<void()>> callbacks_;                             // of operations that are done now
  std::vector<std::weak_ptr<SharedRegion>> regions_;                         // that somebody uses
  size_t next_region_offset_ = 0;                                            // never used again
  std::vector<std::optional<std::string>> left_peers_;                       // by rank: what was first
  std::string cause_;  // of the first failure here, if it was the end of a rank
  TimePoint next_stall_check_{};
  TimePoint last_progress_{};  // of the executions
  bool stuck_reported_ = false;
  std::optional<TimePoint> devices_awaited_;  // since when the end of this engine waits for them
  std::unique_ptr<TimelineSession> timeline_;
  std::map<int, std::deque<std::pair<const Execution*, std::string>>> at_work_;  // what the timeline shows of devices
  std::shared_ptr<TimelineCommand::Done> ending_timeline_;
  std::unique_ptr<Autotuner> autotuner_;  // on the coordinator of all ranks
  StepMarker steps_;
  Position position_;
  std::optional<Inquiry> inquiry_;
  std::vector<int> inquirers_;         // ranks that wait for this one's position
  TimePoint sleep_at_once_until_{};    // yielding the core costs too much until then
  bool thread_checks_stalls_ = false;  // the sleep of the engine's thread ends in time for the next check
  bool failed_ = false;
  bool closed_ = false;

  std::atomic<bool> abandoned_{false};
  std::atomic<bool> has_timeline_commands_{false};
  std::atomic<bool> look_for_lost_{false};
  std::atomic<bool> thread_watches_{false};  // the engine's thread is in epoll
  std::atomic<bool> caller_drives_{false};
  std::atomic<int> num_waiters_{0};
  std::atomic<int> num_would_drive_{0};  // callers that look for the lock to be free
  struct Counters {
    std::atomic<uint64_t> submitted{0}, announced_by_id{0}, batches{0}, fused_operations{0}, passes{0},
        direct_batches{0}, gpu_batches{0}, nccl_batches{0};
  } counters_;
  std::mutex close_mutex_;
  std::thread thread_;
};

}  // namespace hvd
