// The coordinator's side of the negotiation of one process set: a state machine without threads or sockets.
//
// Members announce names; a name that all members announced is ready. Ready names are checked for agreement, fused and
// answered. A name that was agreed gets a number, by which members announce it from then on.
#pragma once

#include <deque>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "engine/request.h"

namespace hvd {

struct NegotiatorOptions {
  size_t fusion_threshold = size_t{64} << 20;
  size_t cache_capacity = 1024;
};

// Whether the values are so few that they may travel with the announcement, and the result with the answer: one round
// trip in place of negotiation and execution. A member does so if it waits for the result at once; values that nobody
// waits for are better fused. The result goes with the answer if all members sent their values.
[[nodiscard]] bool may_travel_with_announcement(const RequestSpec& spec, int num_members);

class Negotiator {
 public:
  // `member_names[r]` is what messages call set rank r, for example "rank 3 (host-b:4711)".
  Negotiator(std::vector<std::string> member_names, NegotiatorOptions options);

  // Returns false if the announced number no longer stands for what the member means: it must announce in full.
  [[nodiscard]] bool announce(int member, Announcement announcement, TimePoint now);

  // The member left; everything that it has to take part in fails from now on.
  void member_left(int member, const std::string& reason);

  // What to tell all members now, in this order. While `executions_allowed` is false only answers that need no
  // execution are given, so that what becomes ready meanwhile can be fused.
  [[nodiscard]] std::vector<Response> take_responses(bool executions_allowed);

  // One message for names that were announced by some, but not all members for `patience` and were not reported yet.
  [[nodiscard]] std::optional<std::string> report_stalled(TimePoint now, Duration patience, bool again = false);
  [[nodiscard]] bool has_pending() const { return num_pending_ > 0; }
  // Whether take_responses(true) would return something.
  [[nodiscard]] bool has_responses() const { return !answers_.empty() || !ready_.empty(); }

 private:
  struct Slot {
    bool announced = false;
    uint64_t digest = 0;
    std::unique_ptr<RequestSpec> spec;  // if it was announced in full
    std::vector<int64_t> extents;
    Bytes payload;
  };
  struct Entry {
    std::string name;
    int64_t id = -1;
    uint64_t digest = 0;      // of what was agreed last
    RequestSpec spec;         // what was agreed last
    std::vector<Slot> slots;  // by set rank
    int num_announced = 0;
    TimePoint first;
    bool reported = false;
    std::list<Entry*>::iterator recent;  // place in recent_, if it has a number
  };

  Entry& entry_of(const std::string& name);
  [[nodiscard]] std::optional<Response> disagreement(Entry& entry) const;
  [[nodiscard]] Response error_for(const Entry& entry, ErrorKind kind, std::string message) const;
  void check_slots(const Entry& entry) const;
  [[nodiscard]] static bool has_all_values(const Entry& entry);
  [[nodiscard]] Response result_of(Entry& entry);
  void take_ready(Entry& entry);
  [[nodiscard]] Response execution_of(const std::vector<Entry*>& entries);
  [[nodiscard]] NameRef reference(Entry& entry);
  void assign_id(Entry& entry);
  void reset(Entry& entry);
  [[nodiscard]] uint64_t fusion_key(const Entry& entry) const;

  std::vector<std::string> member_names_;
  NegotiatorOptions options_;
  std::unordered_map<std::string, std::unique_ptr<Entry>> entries_;
  std::vector<Entry*> ids_;
  std::list<Entry*> recent_;       // entries with a number, the one used last in front
  std::vector<Response> answers_;  // results and errors, ready to go
  std::deque<Entry*> ready_;       // to be executed
  int num_pending_ = 0;
  std::string left_;  // why nothing can be agreed any more
};

}  // namespace hvd
