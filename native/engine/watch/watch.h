// Stalls: operations that do not become ready or do not go on, the ranks that are missing, and where those are. For the
// thread that drives.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "engine/agreement/agreement.h"
#include "engine/execution/executions.h"
#include "engine/messages/control.h"
#include "engine/messages/job_info.h"
#include "engine/submission/submission.h"
#include "engine/watch/deadlock.h"
#include "engine/watch/position.h"
#include "transport/transport.h"

namespace hvd {

struct WatchOptions {
  std::optional<Duration> stall_check_time;         // none: as the pace of the job suggests; zero: never
  Duration stall_shutdown_time = Duration::zero();  // zero: never
  Duration deadlock_timeout = Duration::zero();     // zero: never
};

class Watch {
 public:
  // The parts that it looks at.
  struct Neighbors {
    const JobInfo& job;
    const Transport& transport;
    ControlPlane& control;
    const Submission& submission;
    const Agreement& agreement;
    const Executions& executions;
    Position& position;
  };

  Watch(Neighbors neighbors, WatchOptions options) : with_(neighbors), options_(options) {}

  // Reports stalls when it is time, and goes on with questions. Throws Error (kStalled) if the job is to end.
  void check();
  // Another rank wants to know where this one is.
  void note_question(int peer, const Message& message);
  // Another rank says where it is.
  void note_position(int peer, const Message& message);
  // A caller here, or on another rank, waits for an operation no longer. Throws Error (kStalled) with its words and the
  // ranks that the operation lacks, as far as they are known here; otherwise the coordinator does so on its rank.
  void give_up(const std::shared_ptr<Operation>& operation, const std::string& text);
  void note_give_up(int peer, const Message& message);
  // How long nothing has to be checked, if anything is to be.
  [[nodiscard]] std::optional<Duration> until_check() const;
  // Whether questions or answers are under way.
  [[nodiscard]] bool inquires() const { return inquiry_ || !inquirers_.empty() || !given_up_.empty(); }

 private:
  // A question to other ranks where they are, and what to do with the answers.
  struct Inquiry {
    enum class Purpose : uint8_t { kDeadlock, kDeadlockEnds, kStall, kStallEnds, kCoordinator, kStuck };
    Purpose purpose = Purpose::kStall;
    uint32_t set = 0;
    std::vector<Stall> stalls;
    std::string headline;
    bool executing = false;                                // the operation is being executed
    std::map<int, std::optional<PositionReport>> answers;  // by global rank
    std::set<int> awaited;                                 // of which an answer is on its way
    TimePoint started{};
    TimePoint until;
    // Of a search for a deadlock: what coordinators of other process sets told.
    std::map<Wait, Unready> told;
    int num_rounds = 0;
    bool confirms = false;  // once more, when the positions are known
  };
  struct Inquirer {
    int rank = 0;
    std::vector<Wait> waits;  // of which it wants to know who is missing
  };
  using Questions = std::map<int, std::vector<Wait>>;  // by global rank
  // An operation whose caller waits no longer, while the coordinator is asked which ranks it lacks.
  struct GivenUp {
    std::shared_ptr<Operation> operation;
    std::string text;
    TimePoint until;
  };

  // On the coordinator: a member that waits no longer, for an operation that was pending when it said so.
  struct Impatient {
    uint32_t set = 0;
    int member = 0;
    std::string name;
    std::string text;
  };

  static constexpr const char* kDeadlockHeadline =
      "Ranks wait for each other: each of these operations needs a rank that waits for another one of them. The ranks "
      "took different branches, left an operation out, or submit them in different orders.";

  [[nodiscard]] bool watches() const { return options_.stall_check_time != Duration::zero(); }
  [[nodiscard]] Duration patience_of(const ProcessSet& set) const;
  [[nodiscard]] ProcessSet* find_set(uint32_t id) const { return with_.agreement.find(id); }

  // Finds what stands still.
  void check_stalls_of(ProcessSet& set, TimePoint now);
  void check_coordinator_of(ProcessSet& set, TimePoint now);
  void check_stuck_executions(TimePoint now);
  [[nodiscard]] bool stuck_is_reported() const;
  void look_for_deadlock(ProcessSet& set, TimePoint now);

  // From what ranks tell to what they wait for, through all process sets (search.cc).
  void go_on_with_deadlock(Inquiry inquiry);
  [[nodiscard]] Evidence evidence_of(const Inquiry& inquiry) const;
  [[nodiscard]] std::vector<Unready> unready_of(const std::vector<Wait>& waits) const;
  [[nodiscard]] static Unready unready_of(const ProcessSet& set, const Stall& stall);
  [[nodiscard]] bool coordinates(const Wait& wait) const;
  void add_question(Questions& questions, const Wait& wait) const;

  // Ends the job for callers that wait no longer (give_up.cc).
  void note_impatient(const ProcessSet& set, int member, const std::string& name, const std::string& text);
  void end_for_impatient();
  [[nodiscard]] std::optional<Stall> stall_of(const ProcessSet& set, int member, const std::string& name) const;
  void end_if_waiting(const ProcessSet& set, int member, const std::string& name, const std::string& text) const;
  [[noreturn]] void end_without_room(const ProcessSet& set, const std::string& name, const std::string& text) const;
  [[noreturn]] void end_without_turn(const ProcessSet* set, const Operation& operation, const std::string& text) const;
  [[noreturn]] void end_stuck(const Executions::Active& active, const std::string& text) const;
  [[noreturn]] void end_without(int rank, const std::string& name, const std::string& text) const;
  void check_given_up(TimePoint now);
  [[nodiscard]] std::string awaited_data_of(const Executions::Active& active) const;
  [[nodiscard]] static bool is_pending(const ProcessSet* set, const std::shared_ptr<Operation>& operation);

  // Asks, and reports (inquiry.cc).
  void ask(Inquiry inquiry, const std::vector<int>& ranks);
  void ask_on(Inquiry inquiry, const Questions& questions);
  void answer_inquirers(TimePoint now);
  void conclude(TimePoint now);
  void report(const Inquiry& inquiry) const;
  [[nodiscard]] PositionReport silent_position(int peer) const;
  void describe_operations(PositionReport& report) const;
  [[nodiscard]] bool is_held(const PositionReport& report) const;
  [[nodiscard]] std::vector<Wait> waits() const;

  const Neighbors with_;
  const WatchOptions options_;
  TimePoint next_check_{};
  std::optional<uint64_t> stuck_reported_;  // how often executions had gone on when they were found stuck
  std::optional<Inquiry> inquiry_;
  std::vector<Inquirer> inquirers_;  // that wait for this rank's position
  std::vector<GivenUp> given_up_;
  std::vector<Impatient> impatient_;
};

}  // namespace hvd
