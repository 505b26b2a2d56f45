// Which sends and receives of a process set belong together: a state machine without threads or sockets, of its
// coordinator.
//
// A receive meets the first send, and a send the first receive, that the coordinator heard of between the same two
// members with the same tag; a receive from any member takes the first send to its own. Only these two hear of it.
#pragma once

#include <list>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "engine/messages/request.h"

namespace hvd {

// How long something has waited for members, and what was told of that.
struct Waited {
  TimePoint first{};
  Duration next_probe{};  // at this age
  bool reported = false;
};

// An answer to one member alone.
struct Directed {
  int member = 0;  // set rank
  Response response;
};

class Pairing {
 public:
  // A send or a receive that has not met the other one.
  struct Half {
    int member = 0;  // that submitted it
    int peer = -1;   // set rank of the other end; negative: any
    RequestSpec spec;
    std::string site = {};
    int32_t priority = 0;
    Bytes payload = {};
    Waited waited = {};
  };

  // Returns how long the one that came first has waited, if it meets another one. Throws Error (kInternal) if no rank
  // can have submitted it.
  std::optional<Duration> add(Half half, const std::vector<std::string>& member_names, TimePoint now);
  // Everything that waits fails with these words.
  void fail(const std::string& end);
  // A member sends and receives nothing more: what waits for it fails with these words, also what comes later. So does
  // a receive from any of `num_members`, if no other member is left.
  void leave(int member, const std::string& end, int num_members);

  [[nodiscard]] std::vector<Directed> take_answers() { return std::exchange(answers_, {}); }
  [[nodiscard]] bool has_answers() const { return !answers_.empty(); }
  [[nodiscard]] bool has_waiting() const { return !waiting_.empty(); }
  // What waits, in no order.
  [[nodiscard]] std::vector<Half*> waiting();
  [[nodiscard]] std::vector<const Half*> waiting() const;

 private:
  struct Key {
    int receiver = 0;  // set rank
    int32_t tag = 0;
    bool operator==(const Key&) const = default;
    auto operator<=>(const Key&) const = default;
  };
  using Halves = std::list<Half>;  // in the order in which they were heard of

  [[nodiscard]] const std::string* hopeless(const Half& half) const;
  void fail(const Half& half, const std::string& end);
  void answer(const Half& send, const Half& receive, const std::vector<std::string>& member_names);

  std::map<Key, Halves> waiting_;
  std::map<int, std::string> left_;  // by set rank: why it takes part in nothing more
  int num_members_ = 0;              // known since one left
  std::vector<Directed> answers_;
};

}  // namespace hvd
