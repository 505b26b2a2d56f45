// What callers hand over: each operation gets its name, is checked as far as one rank can, and waits in a queue until
// the engine takes it. Thread-safe; nothing here waits for anything but its own lock.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/messages/job_info.h"
#include "engine/submission/counters.h"
#include "engine/submission/locked.h"
#include "engine/submission/operation.h"
#include "transport/doorbell.h"

namespace hvd {

class Submission {
 public:
  struct Last {
    std::string name;
    std::string call_site;
    TimePoint time;
  };

  // A process set that this rank submits nothing more to.
  struct Leave {
    uint32_t set = 0;
    std::string call_site;
  };
  // An operation that its caller waits for no longer, in words.
  struct GivenUp {
    std::shared_ptr<Operation> operation;
    std::string text;
  };
  // What callers have handed over.
  struct Taken {
    std::vector<std::shared_ptr<Operation>> operations;
    std::vector<Leave> leaves;
    std::vector<GivenUp> given_up;
  };

  Submission(const JobInfo& job, const Doorbell& doorbell, Counters& counters);

  // Writes down what the ranks are to agree on, the tensors excepted.
  static void describe(Operation& operation);
  // Completes the name of an operation without one: the same number on all ranks that submit in one order.
  void count(Operation& operation);
  // The ranks of a process set. Throws Error (kUsage) if this rank cannot submit to it.
  [[nodiscard]] std::vector<int> members_of(uint32_t set, const std::string& what);
  // Queues the operation and rings. Throws Error if it is not valid, or if the engine has ended.
  void submit(const std::shared_ptr<Operation>& operation);
  // See Engine.
  void leave(uint32_t set, std::string call_site);
  void give_up(const std::shared_ptr<Operation>& operation, std::string text);
  // Throws Error if submit() would, because the engine has ended.
  void refuse_if_ended(const Operation& operation) const;
  // Rings, so that the engine's thread looks for work.
  void wake();

  // For the thread that drives: all that waits.
  [[nodiscard]] Taken take();
  // The operation has ended: its name is free again.
  void release(const Operation& operation, bool failed);
  void add_process_set(uint32_t id, std::vector<int> members, int set_rank);
  void remove_process_set(uint32_t id);
  // Whether no operation of the set is in flight here.
  [[nodiscard]] bool is_idle(uint32_t set) const;
  // Whether nothing may be submitted to the set here any more.
  [[nodiscard]] bool is_leaving(uint32_t set) const;
  [[nodiscard]] Last last() const;
  // The threads that have ever submitted, by pthread_self(), unless something waits in the queue.
  [[nodiscard]] std::optional<std::set<uint64_t>> submitters_if_empty() const;

  // From now on every submission is refused with this error; returns what waited.
  [[nodiscard]] std::vector<std::shared_ptr<Operation>> fail(const Error& error);
  [[nodiscard]] std::optional<Error> failure() const;
  // From now on every submission is refused, and the engine's thread ends; rings.
  void close(const std::string& reason);
  [[nodiscard]] std::optional<std::string> closing() const;
  [[nodiscard]] bool is_closing() const;
  // The doorbell is about to go.
  void forget_doorbell();

 private:
  // What submitters need to know of a process set.
  struct Membership {
    std::vector<int> members;
    int set_rank = -1;
    std::unordered_map<std::string_view, std::shared_ptr<const Operation>> in_flight = {};  // by its name
    bool closing = false;      // its removal has been submitted here
    uint64_t num_unnamed = 0;  // operations since the last join
    uint64_t num_joins = 0;
    uint64_t num_transfers = 0;
  };
  struct Queue {
    const Doorbell* doorbell;  // until the engine is closed
    std::vector<std::shared_ptr<Operation>> operations = {};
    std::vector<Leave> leaves = {};
    std::vector<GivenUp> given_up = {};
    std::map<uint32_t, Membership> memberships = {};  // by engine id of the set
    Last last = {};
    const Operation* newest = nullptr;  // submitted last
    TimePoint waits_since = {};         // since then, or since its end was counted
    size_t num_in_flight = 0;
    std::set<uint64_t> submitters = {};  // threads, by pthread_self()
    uint64_t last_submitter = 0;
    std::optional<Error> failure = {};
    std::optional<std::string> closing = {};  // why
    bool gathers = false;                     // the engine's thread will take all this without being rung for
  };

  // Lets the engine look at what was queued, soon or at once. Returns false if nobody would.
  [[nodiscard]] static bool call_for(Queue& queue, const Operation& operation);
  static void refuse_if_ended(const Queue& queue, const Operation& operation);
  // `what`: needs it, for the message.
  [[nodiscard]] Membership& membership_of(Queue& queue, uint32_t set, const std::string& what) const;
  void check(Queue& queue, Membership& set, Operation& operation) const;
  void check_new_process_set(const Operation& operation) const;
  void check_by_members(const Operation& operation) const;
  static void check_removal(Queue& queue, const Operation& operation);
  void count_wait(Queue& queue, const Operation& ended);

  const JobInfo& job_;
  Counters& counters_;
  Guarded<Queue> queue_;
};

}  // namespace hvd
