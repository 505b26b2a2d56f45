// What the ranks agree on: which operations are ready everywhere, and which process sets there are. For the thread that
// drives.
//
// Each process set has a coordinator, which collects what its members announce and answers; see negotiator.h.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/agreement/process_set.h"
#include "engine/execution/completion.h"
#include "engine/execution/executions.h"
#include "engine/execution/tuning.h"
#include "engine/messages/control.h"
#include "engine/messages/job_info.h"
#include "engine/submission/submission.h"
#include "engine/timeline/observer.h"

namespace hvd {

// Of the negotiation in each process set.
struct AgreementOptions {
  size_t fusion_threshold = size_t{64} << 20;
  size_t cache_capacity = 1024;
  bool fuse_groups = true;
};

class Agreement {
 public:
  using ProcessSets = std::map<uint32_t, std::unique_ptr<ProcessSet>>;  // by engine id, which is never used again

  // The parts that it works with.
  struct Neighbors {
    const JobInfo& job;
    ControlPlane& control;
    Submission& submission;
    OperationDevices& devices;
    Observer& observer;
    Completion& completion;
    Executions& executions;
    Tuning& tuning;
    Counters& counters;
  };

  // Makes the process set of all ranks.
  Agreement(Neighbors neighbors, AgreementOptions options);

  // Announces what was submitted, and which process sets this rank leaves; returns whether there was anything to do.
  bool take(const std::vector<std::shared_ptr<Operation>>& submitted, std::vector<Submission::Leave> leaves);
  // A message about a process set. Throws Error (kInternal) if no rank may send it.
  // It may take the message apart.
  void handle(int peer, Message& message);
  // On coordinators: tells all members what has been agreed; returns whether there was anything.
  bool answer_all();
  // The peer said goodbye: nothing that needs it can be done any more.
  void leave(int peer);
  void fail(const Error& error);

  [[nodiscard]] const ProcessSets& sets() const { return sets_; }
  // The set, if there still is one with this id; otherwise nullptr.
  [[nodiscard]] ProcessSet* find(uint32_t id) const;
  // Whether operations of this rank wait for an answer.
  [[nodiscard]] bool has_pending() const;
  // Whether answers wait on a coordinator here.
  [[nodiscard]] bool has_responses() const;
  // Whether operations are neither pending nor executed now.
  [[nodiscard]] bool is_between() const { return !in_hand_.empty(); }
  // Whether this rank can leave a process set now that was in use before.
  [[nodiscard]] bool may_leave() const;
  // Removals of process sets that wait until these are idle here.
  [[nodiscard]] const std::vector<std::shared_ptr<Operation>>& removals() const { return removals_; }
  // What this rank, if it coordinates the peer, knows that the peer submitted last; or nothing.
  [[nodiscard]] std::string last_submitted_by(int peer) const;

 private:
  using Announcements = std::map<uint32_t, std::vector<Announcement>>;

  void announce_submission(const std::shared_ptr<Operation>& operation);
  [[nodiscard]] bool may_announce_removal(const Operation& operation) const;
  void send_announcements(ProcessSet& set, std::vector<Announcement>& announcements);
  void announce(ProcessSet& set, int member, Announcement&& announcement);
  void announce_again(ProcessSet& set, uint64_t digest);
  bool answer(ProcessSet& set);

  // What a coordinator has answered (answers.cc)
  [[nodiscard]] std::shared_ptr<Operation> take(ProcessSet& set, const NameRef& ref);
  void apply(ProcessSet& set, const Response& response);
  void apply_result(ProcessSet& set, const Response& response);
  void execute(ProcessSet& set, const Response& response);
  void note_peer(const ProcessSet& set, Operation& operation, const Response& response) const;
  void check_change(const ProcessSet& set, const RequestSpec& spec) const;
  [[nodiscard]] std::shared_ptr<Operation> stand_in(ProcessSet& set, const NameRef& ref, const Response& response);
  void note_answer(ProcessSet& set, const Operation& operation);
  void agree_on(ProcessSet& set, Operation& operation, const Response& response);

  // Process sets come and go by agreement of all ranks of the job, in the same order on all of them (process_sets.cc).
  [[nodiscard]] ProcessSet& set_of(uint32_t id);
  void make_process_set(uint32_t id, std::vector<int> members);
  void remove_process_set(uint32_t id);
  void end_membership(ProcessSet& set, int peer, const std::string& end);

  // A process set that its members leave, each when it likes (leaves.cc)
  bool leave_idle_sets();
  [[nodiscard]] bool is_in_use(uint32_t set) const;
  void leave_process_set(const Submission::Leave& leave);
  void note_leave(ProcessSet& set, int peer, const Message& message);
  void withdraw(ProcessSet& set, int member, const std::string& call_site);
  void dissolve(const ProcessSet& set, int peer);
  [[nodiscard]] bool is_over(const ProcessSet& set) const;
  void end_process_set(const ProcessSet& set);
  void end_left_sets();

  const Neighbors with_;
  const AgreementOptions options_;
  ProcessSets sets_;
  Announcements announcements_;  // empty lists between two calls, whose memory the next operations use again
  uint32_t next_set_id_ = 1;
  std::map<uint32_t, std::vector<std::pair<int, Message>>> early_messages_;  // of sets that this rank is yet to make
  std::vector<std::shared_ptr<Operation>> removals_;                         // wait until their sets are idle here
  std::vector<Submission::Leave> leaves_;                                    // likewise
  std::vector<std::shared_ptr<Operation>> in_hand_;                          // whose answer is being looked at
};

}  // namespace hvd
