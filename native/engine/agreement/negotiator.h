// The coordinator's side of the negotiation of one process set: a state machine without threads or sockets.
//
// Members announce names; a name that all members announced is ready. Ready names are checked for agreement, fused and
// answered. A name that was agreed gets a number, by which members announce it from then on.
//
// A member that has joined is absent from all that it did not announce: names become ready without it, and the answer
// tells it to take part with neutral values. When all have joined, the joins are answered and everybody is back.
//
// A process set that its members alone ask for is ready when these have announced it; all learn of it. Sends and
// receives are matched by Pairing.
#pragma once

#include <deque>
#include <list>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "engine/agreement/pairing.h"
#include "engine/execution/room.h"
#include "engine/messages/request.h"

namespace hvd {

struct NegotiatorOptions {
  size_t fusion_threshold = size_t{64} << 20;
  size_t cache_capacity = 1024;
  bool fuse_groups = true;        // with operations outside of the group
  std::vector<int> members = {};  // global ranks by set rank; empty if they are the same
  bool is_job = true;             // all ranks of the job are members
};

// Whether the values are so few that they may travel with the announcement, and the result with the answer: one round
// trip in place of negotiation and execution. A member does so if it waits for the result at once; values that nobody
// waits for are better fused. The result goes with the answer if all members sent their values.
[[nodiscard]] bool may_travel_with_announcement(const RequestSpec& spec, int num_members, bool is_on_one_host);

// The same of a send: whoever waits for it, the receiver gets it with the answer, and no other message follows.
[[nodiscard]] bool may_be_sent_with_announcement(const RequestSpec& spec);

// A name that some members announced and others did not.
struct Stall {
  std::string name;
  std::vector<int> waiting;             // set ranks
  std::vector<std::string> call_sites;  // of the waiting, in the same order; may be empty strings
  std::vector<int> missing;             // set ranks
  Duration age{};
};

class Negotiator {
 public:
  // `member_names[r]` is what messages call set rank r, for example "rank 3 (host-b:4711)".
  Negotiator(std::vector<std::string> member_names, NegotiatorOptions options);

  // Returns false if the announced number no longer stands for what the member means: it must announce in full.
  [[nodiscard]] bool announce(int member, Announcement&& announcement, TimePoint now);

  // A member left; everything fails from now on, with these words.
  void member_left(const std::string& end);
  // A member will announce nothing more, and waits for nothing: what needs it fails from now on, with these words.
  void member_withdrew(int member, const std::string& end);
  [[nodiscard]] bool has_withdrawn(int member) const { return withdrawn_.contains(member); }

  // What to tell all members now, in this order: answers that need no execution, and executions for which there is
  // room, the highest priority first. What has to wait can be fused with what becomes ready meanwhile.
  [[nodiscard]] std::vector<Response> take_responses(const Room& room);

  // What to tell single members now.
  [[nodiscard]] std::vector<Directed> take_directed();

  // The names that some members have waited for, the oldest first, if there is one older than `patience` that was not
  // told for the same purpose before. With `again` those too that were. A probe is due again at twice the age, until
  // the user has been told: ranks may come to wait for each other later.
  enum class Purpose : uint8_t { kProbe, kWarning };
  [[nodiscard]] std::vector<Stall> take_stalls(TimePoint now, Duration patience, Purpose purpose, bool again = false);
  // All names that some members wait for, the oldest first.
  [[nodiscard]] std::vector<Stall> stalls(TimePoint now) const;
  // The user has been told of all that members wait for now, in another way.
  void mark_reported();
  [[nodiscard]] bool is_waiting(const std::string& name) const;
  // Whether all members submitted the name, and its execution waits for room.
  [[nodiscard]] bool is_ready(const std::string& name) const;
  // How long members usually wait for each other: the longest wait of the recent past.
  [[nodiscard]] Duration usual_wait() const { return usual_wait_; }
  // What the member announced last, "allreduce.x at train.py:3, 12 s ago"; empty if nothing.
  [[nodiscard]] std::string last_announced(int member, TimePoint now) const;
  [[nodiscard]] bool has_pending() const { return num_pending_ > 0 || pairing_.has_waiting(); }
  // Whether take_responses() would return something if there were room.
  [[nodiscard]] bool has_responses() const {
    return !answers_.empty() || !ready_.empty() || join_ready_ || !directed_.empty() || pairing_.has_answers();
  }

  void set_fusion_threshold(size_t bytes) { options_.fusion_threshold = bytes; }

 private:
  struct Slot {
    bool announced = false;
    uint64_t digest = 0;
    std::unique_ptr<RequestSpec> spec;  // if it was announced in full
    uint32_t site = 0;
    double weight = 1.0;
    int32_t priority = 0;
    int32_t device = kCpuDevice;
    std::vector<int64_t> extents;
    std::vector<int64_t> expected;
    uint64_t place = 0;
    Bytes payload;
  };
  struct Entry {
    std::string name;
    int64_t id = -1;
    uint64_t digest = 0;      // of what was agreed last
    RequestSpec spec;         // what was agreed last
    uint64_t family = 0;      // of `spec`: equal for what may be fused, if members take part alike; 0: alone
    std::vector<Slot> slots;  // by set rank
    int num_announced = 0;
    bool ready = false;
    Waited waited;
    std::list<Entry*>::iterator recent;  // place in recent_, if it has a number
  };
  struct Last {
    std::string name;
    uint32_t site = 0;
    TimePoint time;
  };
  // An unnamed operation that ranks disagreed on: those that have not announced it yet must hear of it too.
  struct Refused {
    std::string message;
    std::vector<bool> told;  // by set rank
  };
  // Members asked for different process sets under one name: those that have not asked yet must hear of it too.
  struct RefusedSet {
    std::string message;
    std::set<int> untold;  // set ranks
  };
  // What waits for members: a name, or a half of a transfer.
  struct Late {
    Waited* waited = nullptr;
    Duration age{};
    const std::string* name = nullptr;
    const Entry* entry = nullptr;
    const Pairing::Half* half = nullptr;
  };

  // Members and what they announce (negotiator.cc)
  Entry& entry_of(const std::string& name);
  Slot& fill_slot(Entry& entry, int member, Announcement&& announcement, TimePoint now);
  void note_site(int member, const Announcement& announcement);
  void member_joined(int member, TimePoint now);
  [[nodiscard]] bool is_complete(const Entry& entry) const;
  void take_if_ready(Entry& entry, TimePoint now);
  void take_unnamed(Entry& entry, int member, TimePoint now);
  void note_wait(Duration wait, TimePoint now);
  void note_last(int member, const std::string& name, uint32_t site, TimePoint now);
  void add_transfer(int member, Announcement announcement, TimePoint now);
  [[nodiscard]] bool was_refused(int member, const Announcement& announcement);
  void check_asker(int member, const RequestSpec& spec) const;
  void take_by_members(Entry& entry, TimePoint now);
  void refuse_sets(Entry& entry);
  [[nodiscard]] int set_rank_of(int rank) const;
  [[nodiscard]] std::vector<Late> late(TimePoint now);
  [[nodiscard]] Stall stall_of(const Late& late, TimePoint now) const;
  [[nodiscard]] Stall stall_of(const Pairing::Half& half, TimePoint now) const;
  void end_collectives(const std::string& end);
  void reset(Entry& entry);
  [[nodiscard]] Duration age_of(const Entry& entry, TimePoint now) const;
  [[nodiscard]] Stall stall_of(const Entry& entry, TimePoint now) const;

  [[nodiscard]] int global_rank(size_t member) const {
    return options_.members.empty() ? static_cast<int>(member) : options_.members[member];
  }

  // Agreement and answers (negotiator_answers.cc)
  void take_ready(Entry& entry);
  [[nodiscard]] std::optional<Response> disagreement(const Entry& entry) const;
  [[nodiscard]] std::optional<Response> missing_participant(const Entry& entry) const;
  [[nodiscard]] static RequestSpec request_of(const Entry& entry, const Slot& slot);
  [[nodiscard]] std::string requests_of(const Entry& entry) const;
  [[nodiscard]] Response error_for(const Entry& entry, ErrorKind kind, std::string message) const;
  void check_slots(const Entry& entry) const;
  [[nodiscard]] std::optional<Response> unexpected_rows(const Entry& entry) const;
  [[nodiscard]] static bool has_all_values(const Entry& entry);
  [[nodiscard]] static bool is_reachable(const Entry& entry);
  [[nodiscard]] Response result_of(Entry& entry);
  void reduce_values(Entry& entry, Response& response) const;
  [[nodiscard]] Response join_result();
  [[nodiscard]] Response execution_of(const std::vector<Entry*>& entries);
  [[nodiscard]] NameRef reference(Entry& entry);
  void add_extents(const Entry& entry, NameRef& ref) const;
  void name_absent(const Entry& entry, Response& response) const;
  [[nodiscard]] int32_t device_of(const Entry& entry, size_t member) const;
  [[nodiscard]] std::vector<int32_t> devices_of(const Entry& entry) const;
  void assign_id(Entry& entry);
  [[nodiscard]] uint64_t family_of(const RequestSpec& spec) const;
  [[nodiscard]] uint64_t fusion_key(const Entry& entry) const;
  [[nodiscard]] static int32_t priority_of(const Entry& entry);
  [[nodiscard]] std::vector<Entry*> take_startable(const Room& room);
  [[nodiscard]] const Slot& first_slot(const Entry& entry) const;
  [[nodiscard]] const RequestSpec& spec_of(const Entry& entry, const Slot& slot) const;
  [[nodiscard]] const std::string& site_of(size_t member, const Slot& slot) const;

  std::vector<std::string> member_names_;
  NegotiatorOptions options_;
  std::vector<std::vector<std::string>> sites_;  // by set rank and number
  std::vector<Last> last_;                       // by set rank: what it announced last
  std::unordered_map<std::string, std::unique_ptr<Entry>> entries_;
  std::unordered_map<uint64_t, std::string> unnamed_;  // the pending operation of each number
  std::unordered_map<uint64_t, Refused> refused_;      // by number
  std::vector<Entry*> ids_;
  std::unordered_map<std::string, RefusedSet> refused_sets_;
  Pairing pairing_;
  std::vector<Directed> directed_;  // errors of process sets that members asked for
  std::list<Entry*> recent_;        // entries with a number, the one used last in front
  std::vector<Response> answers_;   // results and errors, ready to go
  std::deque<Entry*> ready_;        // to be executed
  int num_pending_ = 0;
  std::vector<bool> joined_;  // by set rank
  int num_joined_ = 0;
  int last_joined_ = -1;
  bool all_averaged_ = true;  // Average divides by all members even while some have joined
  bool join_ready_ = false;   // all have joined; answered after all that became ready before
  TimePoint last_ready_{};
  Duration usual_wait_{};
  TimePoint usual_wait_noted_{};
  std::string left_;            // why no operation of all members can be agreed any more
  std::string transfers_left_;  // the same of sends and receives
  std::set<int> withdrawn_;     // set ranks
};

}  // namespace hvd
