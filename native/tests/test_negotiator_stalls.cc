#include "engine/agreement/negotiator.h"
#include "testing/check.h"
#include "testing/members.h"

namespace hvd {
namespace {

using Purpose = Negotiator::Purpose;

TEST("negotiator: tells once, for each purpose, what some members have waited for, and from where") {
  Members members(3);
  const Duration patience = std::chrono::seconds(60);
  CHECK(members.announce_at(1, make_spec("late"), "train.py:7"));
  const auto stalls = [&](Purpose purpose, bool again = false) {
    return members.negotiator.take_stalls(members.clock.now(), patience, purpose, again);
  };
  members.clock.advance(std::chrono::seconds(59));
  CHECK(stalls(Purpose::kWarning).empty());
  CHECK(members.announce(0, in_full(make_spec("fresh"))));
  members.clock.advance(std::chrono::seconds(2));
  const std::vector<Stall> first = stalls(Purpose::kWarning);
  REQUIRE(first.size() == 1);  // the fresh one is not late
  CHECK_EQ(first[0].name, "late");
  CHECK(first[0].waiting == std::vector<int>({1}));
  CHECK(first[0].missing == std::vector<int>({0, 2}));
  CHECK(first[0].call_sites == std::vector<std::string>({"train.py:7"}));
  CHECK(first[0].age == std::chrono::seconds(61));
  CHECK(stalls(Purpose::kWarning).empty());
  CHECK_EQ(stalls(Purpose::kProbe).size(), 2U);
  CHECK(stalls(Purpose::kProbe).empty());
  CHECK_EQ(stalls(Purpose::kWarning, true).size(), 1U);
  CHECK(members.negotiator.is_waiting("late"));
  members.announce(0, in_full(make_spec("told of")));
  members.negotiator.mark_reported();
  members.clock.advance(std::chrono::seconds(120));
  CHECK(stalls(Purpose::kWarning).empty());
  members.announce(0, in_full(make_spec("late")));
  members.announce(2, in_full(make_spec("late")));
  CHECK(!members.negotiator.is_waiting("late"));
}

TEST("negotiator: ranks are probed again at twice the age, until the user has been told") {
  Members members(2);
  const auto probes = [&] {
    return members.negotiator.take_stalls(members.clock.now(), std::chrono::seconds(1), Purpose::kProbe).size();
  };
  CHECK(members.announce(1, in_full(make_spec("early"))));
  members.clock.advance(std::chrono::seconds(3));
  CHECK(members.announce(0, in_full(make_spec("crosswise"))));
  CHECK_EQ(probes(), 2U);
  members.clock.advance(std::chrono::seconds(2));
  CHECK_EQ(probes(), 0U);
  members.clock.advance(std::chrono::seconds(1));
  CHECK_EQ(probes(), 2U);
  members.clock.advance(std::chrono::seconds(5));
  CHECK_EQ(probes(), 0U);
  members.negotiator.mark_reported();
  members.clock.advance(std::chrono::minutes(5));
  CHECK_EQ(probes(), 0U);
  members.announce(1, in_full(make_spec("crosswise")));
  members.announce(1, in_full(make_spec("later")));
  members.clock.advance(std::chrono::seconds(1));
  CHECK_EQ(probes(), 2U);
}

TEST("negotiator: a long wait of the past is expected again, for a while") {
  Members members(2);
  CHECK(members.negotiator.usual_wait() == Duration::zero());
  CHECK(members.announce(0, in_full(make_spec("validation"))));
  members.clock.advance(std::chrono::seconds(40));
  CHECK(members.announce(1, in_full(make_spec("validation"))));
  CHECK(members.negotiator.usual_wait() == std::chrono::seconds(40));
  members.agree("step");
  CHECK(members.negotiator.usual_wait() == std::chrono::seconds(40));
  members.clock.advance(std::chrono::hours(1));
  members.agree("next");
  CHECK(members.negotiator.usual_wait() == std::chrono::seconds(20));
}

}  // namespace
}  // namespace hvd
