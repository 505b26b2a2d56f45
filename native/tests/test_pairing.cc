// Which sends and receives the coordinator brings together.
#include "engine/agreement/negotiator.h"
#include "testing/check.h"
#include "testing/members.h"

namespace hvd {
namespace {

RequestSpec make_half(OpKind kind, const std::string& name, int peer, int32_t tag = 0, int64_t count = kLarge) {
  RequestSpec spec = make_spec(name, count);
  spec.kind = kind;
  spec.root = peer;
  spec.tag = tag;
  spec.cacheable = false;
  return spec;
}

RequestSpec send_to(int peer, const std::string& name, int32_t tag = 0) {
  return make_half(OpKind::kSend, name, peer, tag);
}
RequestSpec recv_from(int peer, const std::string& name, int32_t tag = 0) {
  return make_half(OpKind::kRecv, name, peer, tag);
}

// "1 s 2" for what the first member was told of each: its name, and the other end.
std::vector<std::string> told(Members& members) {
  std::vector<std::string> lines;
  for (const Directed& answer : members.negotiator.take_directed()) {
    const Response& response = answer.response;
    const std::string outcome = response.kind == Response::Kind::kError ? "error" : std::to_string(response.peer);
    lines.push_back(std::to_string(answer.member) + " " + response.names.at(0).name + " " + outcome);
  }
  return lines;
}

using Lines = std::vector<std::string>;

TEST("pairing: a send meets the receive of its member and tag, and nobody else hears of it") {
  Members members(4);
  CHECK(members.announce(1, in_full(recv_from(0, "r", 7))));
  CHECK(members.announce(0, in_full(send_to(1, "other tag", 8))));
  CHECK(members.announce(0, in_full(send_to(2, "other member", 7))));
  CHECK(members.announce(3, in_full(send_to(1, "other sender", 7))));
  CHECK(!members.negotiator.has_responses());
  CHECK(members.announce(0, in_full(send_to(1, "s", 7))));
  CHECK(members.negotiator.has_responses());
  CHECK(members.take().empty());
  CHECK(told(members) == Lines({"0 s 1", "1 r 0"}));
  CHECK(!members.negotiator.has_responses());
  CHECK(members.negotiator.has_pending());
}

TEST("pairing: sends and receives of two members meet in the order of submission, whichever comes first") {
  for (const bool sends_first : {true, false}) {
    Members members(2);
    const auto sends = [&] {
      for (const char* name : {"s1", "s2", "s3"}) CHECK(members.announce(0, in_full(send_to(1, name))));
    };
    if (sends_first) sends();
    for (const char* name : {"r1", "r2", "r3"}) CHECK(members.announce(1, in_full(recv_from(0, name))));
    if (!sends_first) sends();
    CHECK(told(members) == Lines({"0 s1 1", "1 r1 0", "0 s2 1", "1 r2 0", "0 s3 1", "1 r3 0"}));
    CHECK(!members.negotiator.has_pending());
  }
}

TEST("pairing: a receive from any member takes the first send, and a send the first receive that accepts it") {
  Members members(3);
  CHECK(members.announce(2, in_full(send_to(0, "s2"))));
  CHECK(members.announce(1, in_full(send_to(0, "s1"))));
  CHECK(members.announce(0, in_full(recv_from(-1, "any"))));
  CHECK(told(members) == Lines({"2 s2 0", "0 any 2"}));
  CHECK(members.announce(0, in_full(recv_from(2, "from 2"))));
  CHECK(members.announce(0, in_full(recv_from(-1, "any"))));
  CHECK(told(members) == Lines({"1 s1 0", "0 any 1"}));
  CHECK(members.announce(0, in_full(recv_from(-1, "again"))));
  CHECK(members.announce(1, in_full(send_to(0, "s1"))));
  CHECK(members.announce(2, in_full(send_to(0, "s2"))));
  CHECK(told(members) == Lines({"1 s1 0", "0 again 1", "2 s2 0", "0 from 2 2"}));
}

TEST("pairing: members are known by their ranks in the set") {
  Members members(3, {.members = {1, 4, 6}, .is_job = false});
  CHECK(members.announce(0, in_full(send_to(6, "s"))));
  CHECK(members.announce(2, in_full(recv_from(1, "r"))));
  CHECK(told(members) == Lines({"0 s 2", "2 r 0"}));
}

TEST("pairing: few values travel with the announcement and the answer") {
  Members members(2);
  const RequestSpec sent = make_half(OpKind::kSend, "s", 1, 0, 2);
  CHECK(may_be_sent_with_announcement(sent));
  CHECK(!may_be_sent_with_announcement(send_to(1, "large")));
  CHECK(members.announce(0, with_values(sent, std::vector<float>{1.5F, 2.5F})));
  CHECK(members.announce(1, in_full(make_half(OpKind::kRecv, "r", 0, 0, 2))));
  const std::vector<Directed> answers = members.negotiator.take_directed();
  REQUIRE(answers.size() == 2);
  CHECK(answers[0].response.kind == Response::Kind::kResult);
  CHECK(answers[0].response.payload.empty());
  CHECK(answers[1].response.kind == Response::Kind::kResult);
  REQUIRE(answers[1].response.payload.size() == 8);
  float second = 0.0F;
  std::memcpy(&second, answers[1].response.payload.data() + 4, sizeof(second));
  CHECK_EQ(second, 2.5F);
}

TEST("pairing: what does not fit is an error of both that names lines and ranks") {
  Members members(2);
  CHECK(members.announce_at(0, make_half(OpKind::kSend, "s", 1, 3, 10), "train.py:7"));
  RequestSpec other = make_half(OpKind::kRecv, "r", -1, 3, 11);
  CHECK(members.announce_at(1, other, "train.py:9"));
  std::vector<Directed> answers = members.negotiator.take_directed();
  REQUIRE(answers.size() == 2);
  for (const Directed& answer : answers) {
    CHECK(answer.response.kind == Response::Kind::kError);
    CHECK(answer.response.error_kind == ErrorKind::kMismatch);
    const std::string& text = answer.response.message;
    CHECK(contains(text, "Mismatched numbers of elements"));
    CHECK(contains(text, "rank 0 (host:0) submitted send to rank 1 with tag 3 of float32 [10] at train.py:7"));
    CHECK(contains(text, "rank 1 (host:1) submitted recv from any rank with tag 3 of float32 [11] at train.py:9"));
  }
  other.tensors = {{DType::kInt32, {10}}};
  CHECK(members.announce(0, in_full(make_half(OpKind::kSend, "s", 1, 3, 10))));
  CHECK(members.announce(1, in_full(other)));
  answers = members.negotiator.take_directed();
  REQUIRE(answers.size() == 2);
  CHECK(contains(answers[1].response.message, "Mismatched data types"));
  other.tensors = {{DType::kFloat32, {2, 5}}};  // another shape of as many
  CHECK(members.announce(0, in_full(make_half(OpKind::kSend, "s", 1, 3, 10))));
  CHECK(members.announce(1, in_full(other)));
  CHECK(told(members) == Lines({"0 s 1", "1 r 0"}));
}

TEST("pairing: who misses whom is told, also of a receive from any member") {
  Members members(3);
  CHECK(members.announce_at(1, recv_from(0, "r"), "train.py:5"));
  members.clock.advance(std::chrono::seconds(1));
  CHECK(members.announce_at(2, recv_from(-1, "any"), "train.py:6"));
  members.clock.advance(std::chrono::seconds(60));
  const auto stalls =
      members.negotiator.take_stalls(members.clock.now(), std::chrono::seconds(30), Negotiator::Purpose::kWarning);
  REQUIRE(stalls.size() == 2);
  CHECK_EQ(stalls[0].name, "r");
  CHECK(stalls[0].waiting == std::vector<int>({1}));
  CHECK(stalls[0].missing == std::vector<int>({0}));
  CHECK(stalls[0].call_sites == Lines({"train.py:5"}));
  CHECK(stalls[0].age == std::chrono::seconds(61));
  CHECK(stalls[1].missing == std::vector<int>({0, 1}));
  CHECK(members.negotiator.is_waiting("any"));
  CHECK(!members.negotiator.is_waiting("no"));
  CHECK(members.negotiator.take_stalls(members.clock.now(), std::chrono::seconds(30), Negotiator::Purpose::kWarning)
            .empty());
  CHECK_EQ(members.negotiator.stalls(members.clock.now()).size(), 2U);
  CHECK(members.announce(0, in_full(send_to(1, "s"))));
  CHECK(!members.negotiator.is_waiting("r"));
  CHECK(members.negotiator.usual_wait() == std::chrono::seconds(61));
}

TEST("pairing: a member that leaves ends what waits and what comes") {
  Members members(3);
  CHECK(members.announce(1, in_full(recv_from(0, "r"))));
  members.negotiator.member_left("rank 2 is tired");
  CHECK(told(members) == Lines({"1 r error"}));
  CHECK(members.announce(0, in_full(send_to(1, "s"))));
  CHECK(told(members) == Lines({"0 s error"}));
  CHECK(!members.negotiator.has_pending());
}

TEST("pairing: what no rank can submit is refused") {
  const auto refuses = [](const RequestSpec& spec) {
    Members members(2);
    try {
      static_cast<void>(members.announce(0, in_full(spec)));
    } catch (const Error& error) {
      return error.kind() == ErrorKind::kInternal;
    }
    return false;
  };
  CHECK(refuses(send_to(0, "itself")));
  CHECK(refuses(send_to(-1, "to nobody")));
  CHECK(refuses(send_to(2, "to a stranger")));
  CHECK(refuses(recv_from(5, "from a stranger")));
  CHECK(refuses(send_to(1, "tag", -1)));
  RequestSpec two = send_to(1, "two");
  two.tensors.push_back(two.tensors.front());
  CHECK(refuses(two));
  two.tensors.clear();
  CHECK(refuses(two));
  Members members(2);
  bool refused = false;
  try {
    static_cast<void>(members.announce(0, with_values(send_to(1, "short"), std::vector<float>{1.0F})));
  } catch (const Error&) {
    refused = true;
  }
  CHECK(refused);
}

RequestSpec asks_for(const std::vector<int64_t>& ranks, const std::string& name) {
  RequestSpec spec;
  spec.kind = OpKind::kAddProcessSet;
  spec.name = name;
  spec.ranks = ranks;
  spec.by_members = true;
  spec.cacheable = false;
  return spec;
}

TEST("negotiator: a process set that its members ask for is ready without the others, who learn of it") {
  Members members(4);
  CHECK(members.announce(1, in_full(asks_for({1, 3}, "p"))));
  CHECK(members.announce(0, in_full(asks_for({0, 2}, "q"))));
  members.clock.advance(std::chrono::seconds(60));
  const auto stalls = members.negotiator.stalls(members.clock.now());
  REQUIRE(stalls.size() == 2);
  CHECK(stalls[0].missing == std::vector<int>({3}));
  CHECK(stalls[1].missing == std::vector<int>({2}));
  CHECK(members.take().empty());
  CHECK(members.announce(3, in_full(asks_for({1, 3}, "p"))));
  const std::vector<Response> responses = members.take();
  REQUIRE(responses.size() == 1);
  CHECK(responses[0].kind == Response::Kind::kResult);
  CHECK(responses[0].absent == std::vector<int32_t>({0, 2}));
  REQUIRE(responses[0].names.at(0).spec.size() == 1);
  CHECK(responses[0].names[0].spec[0].ranks == std::vector<int64_t>({1, 3}));
  CHECK(responses[0].names[0].new_id < 0);
}

TEST("negotiator: members that ask for different process sets under a name all hear of it, at once or when they come") {
  Members members(4);
  CHECK(members.announce_at(0, asks_for({0, 1}, "p"), "a.py:1"));
  CHECK(members.announce_at(2, asks_for({0, 2, 3}, "p"), "b.py:2"));
  const auto told_of = [&](int member) {
    const std::vector<Directed> answers = members.negotiator.take_directed();
    const bool found = std::any_of(answers.begin(), answers.end(), [&](const Directed& answer) {
      return answer.member == member && answer.response.error_kind == ErrorKind::kMismatch &&
             contains(answer.response.message, "rank 0 (host:0) sent add_process_set 0, 1 by its members at a.py:1") &&
             contains(answer.response.message, "at b.py:2");
    });
    return found ? answers.size() : 0;
  };
  CHECK_EQ(told_of(2), 2U);
  CHECK(members.announce(0, in_full(asks_for({0, 1}, "p"))));  // tries again
  CHECK_EQ(told_of(0), 0U);
  CHECK(members.announce_at(1, asks_for({0, 1}, "p"), "c.py:3"));  // has not heard of the first time
  CHECK_EQ(told_of(1), 1U);
  CHECK(members.announce(1, in_full(asks_for({0, 1}, "p"))));
  CHECK_EQ(members.take().size(), 1U);
  CHECK(members.announce(3, in_full(asks_for({0, 2, 3}, "p"))));
  CHECK_EQ(told_of(3), 1U);
}

TEST("negotiator: members ask only for what they are in, in the set of all ranks") {
  const auto refuses = [](const RequestSpec& spec, bool is_job) {
    Members members(3, {.is_job = is_job});
    try {
      static_cast<void>(members.announce(0, in_full(spec)));
    } catch (const Error& error) {
      return error.kind() == ErrorKind::kInternal;
    }
    return false;
  };
  CHECK(!refuses(asks_for({0, 1}, "p"), true));
  CHECK(refuses(asks_for({0, 1}, "p"), false));
  CHECK(refuses(asks_for({1, 2}, "p"), true));
  CHECK(refuses(asks_for({0, 3}, "p"), true));
  CHECK(refuses(asks_for({0, 0}, "p"), true));
  CHECK(refuses(asks_for({}, "p"), true));
  RequestSpec barrier = asks_for({0}, "p");
  barrier.kind = OpKind::kBarrier;
  CHECK(refuses(barrier, true));
}

TEST("pairing: what needs a member that has left fails, now and later; the rest goes on") {
  Members members(3);
  CHECK(members.announce(0, in_full(recv_from(1, "from 1"))));
  CHECK(members.announce(0, in_full(recv_from(-1, "from any", 4))));
  CHECK(members.announce(2, in_full(send_to(1, "to 1"))));
  CHECK(members.announce(2, in_full(recv_from(0, "from 0", 5))));
  members.negotiator.member_withdrew(1, "rank 1 has left");
  Lines lines = told(members);
  std::sort(lines.begin(), lines.end());
  CHECK(lines == Lines({"0 from 1 error", "2 to 1 error"}));
  CHECK(members.announce(2, in_full(send_to(1, "later", 9))));
  CHECK(told(members) == Lines({"2 later error"}));
  CHECK(members.announce(0, in_full(send_to(2, "to 2", 5))));
  CHECK(told(members) == Lines({"0 to 2 2", "2 from 0 0"}));
  members.negotiator.member_withdrew(2, "rank 2 has left");
  CHECK(told(members) == Lines({"0 from any error"}));
  CHECK(!members.negotiator.has_pending());
  CHECK(members.negotiator.has_withdrawn(2));
  CHECK(!members.negotiator.has_withdrawn(0));
}

}  // namespace
}  // namespace hvd
