// What the engine notes for the timeline of the job, and how a program starts and stops it.
//
// Of each operation: negotiation from the submission to the answer, then the operation, then what moves its data.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/messages/job_info.h"
#include "engine/messages/request.h"
#include "engine/submission/locked.h"
#include "engine/submission/operation.h"
#include "engine/timeline/timeline_session.h"

namespace hvd {

class Observer {
 public:
  using Operations = std::vector<std::shared_ptr<Operation>>;

  // `ring`: wakes whoever drives.
  Observer(const JobInfo& job, std::vector<bool> is_remote, TimelineSession::Send send, std::function<void()> ring);

  // For any thread of rank 0; elsewhere they do nothing. `wait`: until the operation is done or the time is over.
  using Wait = std::function<bool(Operation& operation, Duration timeout)>;
  void start(const std::string& path, bool mark_cycles, const Wait& wait);
  void stop(const Wait& wait);
  // The timeline of somebody who watches the job, which gives way to that of the program. Throws Error (kUsage) if
  // there is one already.
  void start_trace(const std::string& path, const Wait& wait);
  // Returns whether it ran until now.
  [[nodiscard]] bool stop_trace(const Wait& wait);
  // From now on the timeline cannot be changed.
  void close();
  // In the child of a fork.
  void abandon() { session_.abandon(); }

  // The rest is for the thread that drives.
  void record_submission(const Operation& operation);
  void record_announcement(int peer, const Announcement& announcement);
  void record_cycle();
  void record_answer(const Operation& operation, bool failed);
  void record_execution(const Operations& operations, bool begins);
  // `work` tells batches on one device apart.
  void record_device(const Operations& operations, const void* work, bool begins);
  void record_end(const Operation& operation);

  void handle(int peer, const Message& message) { session_.handle(peer, message, steady_now()); }
  void peer_left(int peer) { session_.peer_left(peer); }
  // Starts and stops, and sends what was recorded.
  void follow_commands();
  [[nodiscard]] std::optional<Duration> until_flush() const { return session_.until_flush(steady_now()); }
  // The records of the last moments are wanted even if this rank ends first. Returns whether they are here.
  [[nodiscard]] bool has_ended();
  // The engine has failed: who waits for a change hears of it, and the last records are kept, as they tell most.
  void fail(const Error& error);
  [[nodiscard]] std::unique_ptr<TimelineWriter> take_writer() { return session_.take_writer(); }

 private:
  // To start a timeline, or to stop it if there is no writer.
  struct Command {
    struct Done {
      Operation operation;  // what the caller waits for
      std::unique_ptr<TimelineWriter> ended;
    };
    std::unique_ptr<TimelineWriter> writer;
    uint32_t run = 0;
    std::shared_ptr<Done> done = {};
  };
  struct Commands {
    std::deque<Command> waiting;
    std::string path;       // of the running timeline
    bool is_trace = false;  // which somebody else than the program has started
    uint32_t run = 0;
    bool closed = false;
  };

  [[nodiscard]] static TimePoint steady_now() { return std::chrono::steady_clock::now(); }
  [[nodiscard]] std::shared_ptr<Command::Done> begin(const std::string& path, bool mark_cycles, bool is_trace);
  [[nodiscard]] bool end(bool is_trace, const Wait& wait);
  [[nodiscard]] std::shared_ptr<Command::Done> give(Command command, const std::string& path, bool is_trace);
  static void await(Command::Done& done, const Wait& wait);
  [[nodiscard]] std::optional<Command> next_command();

  const JobInfo& job_;
  const std::function<void()> ring_;
  TimelineSession session_;
  std::map<int, std::deque<std::pair<const void*, std::string>>> at_work_;  // what the timeline shows of devices
  std::shared_ptr<Command::Done> ending_;
  std::mutex change_mutex_;  // held from the decision to start or stop until the command for it waits
  std::atomic<bool> has_commands_{false};
  Guarded<Commands> commands_;
};

}  // namespace hvd
