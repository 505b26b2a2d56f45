#include <cstring>

#include "engine/agreement/negotiator.h"
#include "testing/check.h"
#include "testing/members.h"

namespace hvd {
namespace {

constexpr Room kNoRoom{.any = false, .small = false};

TEST("negotiator: a name is ready when the last member announced it, in this order") {
  Members members(3);
  const RequestSpec a = make_spec("a");
  const RequestSpec b = make_spec("b");
  CHECK(members.announce(0, in_full(a)));
  CHECK(members.announce(0, in_full(b)));
  CHECK(members.announce(1, in_full(b)));
  CHECK(members.announce(2, in_full(a)));
  CHECK(members.take().empty());
  CHECK(members.negotiator.has_pending());
  CHECK(members.announce(2, in_full(b)));
  std::vector<Response> responses = members.take();
  REQUIRE(responses.size() == 1);
  CHECK_EQ(responses[0].names.at(0).name, "b");
  CHECK(members.announce(1, in_full(a)));
  responses = members.take();
  REQUIRE(responses.size() == 1);
  CHECK_EQ(responses[0].names.at(0).name, "a");
  CHECK(!members.negotiator.has_pending());
}

std::vector<std::string> names_of(const std::vector<Response>& responses) {
  std::vector<std::string> names;
  for (const Response& response : responses) {
    for (const NameRef& ref : response.names) names.push_back(ref.name);
  }
  return names;
}

TEST("negotiator: the highest priority that a member gives goes first") {
  NegotiatorOptions options;
  options.fusion_threshold = 0;
  Members members(2, options);
  const std::vector<std::pair<std::string, std::vector<int32_t>>> given{
      {"low", {-3, -5}}, {"usual", {0, 0}}, {"high", {7, 7}}, {"raised by one", {0, 2}}, {"usual too", {0, 0}}};
  for (const auto& [name, priorities] : given) {
    for (int member = 0; member < 2; ++member) {
      Announcement announcement = in_full(make_spec(name));
      announcement.priority = priorities[static_cast<size_t>(member)];
      CHECK(members.announce(member, std::move(announcement)));
    }
  }
  const std::vector<Response> responses = members.take();
  CHECK(names_of(responses) == (std::vector<std::string>{"high", "raised by one", "usual", "usual too", "low"}));
  CHECK_EQ(responses.at(1).priority, 2);
  CHECK_EQ(responses.at(4).priority, -3);
}

TEST("negotiator: small and urgent batches do not wait behind long ones") {
  Members members(2);
  const auto with_length = [](const std::string& name, int64_t count) {
    RequestSpec spec = make_spec(name);
    spec.tensors.front().shape = {count};
    return spec;
  };
  const auto most = static_cast<int64_t>(kSmallBatchBytes / size_of(make_spec("").tensors.front().dtype));
  members.announce_all(with_length("long", most + 1));
  members.announce_all(with_length("small", most));
  members.announce_all(with_length("tiny", 10));
  for (int member = 0; member < 2; ++member) {
    Announcement urgent = in_full(with_length("urgent", 4 * most));
    urgent.priority = 1;
    CHECK(members.announce(member, std::move(urgent)));
  }
  CHECK(names_of(members.take({.any = false, .small = false, .priority = 0})) == std::vector<std::string>{"urgent"});
  const std::vector<Response> small = members.take({.any = false, .small = true, .priority = 1});
  CHECK(names_of(small) == (std::vector<std::string>{"small", "tiny"}));
  CHECK_EQ(small.size(), 2U);  // together they are not small
  CHECK(names_of(members.take(kNoRoom)).empty());
  CHECK(names_of(members.take()) == std::vector<std::string>{"long"});
}

TEST("negotiator: ready names wait until there is room, and are fused then") {
  Members members(2);
  members.announce_all(make_spec("a"));
  members.announce_all(make_spec("b"));
  CHECK(members.take(kNoRoom).empty());
  const std::vector<Response> responses = members.take();
  REQUIRE(responses.size() == 1);
  CHECK_EQ(responses[0].names.size(), 2U);
}

TEST("negotiator: an agreed name is announced by number from then on") {
  Members members(2);
  CHECK_EQ(members.agree("a"), 0);
  CHECK_EQ(members.agree("b"), 1);
  for (int member = 0; member < 2; ++member) CHECK(members.announce(member, by_id(1, make_spec("b"))));
  const std::vector<Response> responses = members.take();
  REQUIRE(responses.size() == 1);
  CHECK(responses[0].names.at(0).by_id);
  CHECK_EQ(responses[0].names.at(0).id, 1U);
}

TEST("negotiator: if one member announced in full, the answer tells name and number") {
  Members members(2);
  CHECK_EQ(members.agree("a"), 0);
  CHECK(members.announce(0, by_id(0, make_spec("a"))));
  CHECK(members.announce(1, in_full(make_spec("a"))));
  const std::vector<Response> responses = members.take();
  REQUIRE(responses.size() == 1);
  CHECK(!responses[0].names.at(0).by_id);
  CHECK_EQ(responses[0].names.at(0).new_id, 0);
}

TEST("negotiator: the number used least recently goes to a new name, the old name must be told in full") {
  Members members(2, {.cache_capacity = 2});
  CHECK_EQ(members.agree("a"), 0);
  CHECK_EQ(members.agree("b"), 1);
  for (int member = 0; member < 2; ++member) CHECK(members.announce(member, by_id(0, make_spec("a"))));
  CHECK_EQ(members.take().size(), 1U);
  CHECK_EQ(members.agree("c"), 1);
  CHECK(!members.announce(0, by_id(1, make_spec("b"))));
  CHECK(members.announce(0, in_full(make_spec("b"))));
  CHECK(members.announce(1, in_full(make_spec("b"))));
  CHECK_EQ(members.take().at(0).names.at(0).new_id, 0);
}

TEST("negotiator: a name that is being announced keeps its number") {
  Members members(2, {.cache_capacity = 1});
  CHECK_EQ(members.agree("a"), 0);
  CHECK(members.announce(0, by_id(0, make_spec("a"))));
  CHECK_EQ(members.agree("b"), -1);
  CHECK(members.announce(1, by_id(0, make_spec("a"))));
  CHECK_EQ(members.take().size(), 1U);
}

TEST("negotiator: without a cache, or for names used once, there are no numbers") {
  Members none(2, {.cache_capacity = 0});
  CHECK_EQ(none.agree("a"), -1);
  CHECK_EQ(none.agree("a"), -1);
  CHECK(!none.announce(0, by_id(0, make_spec("a"))));
  Members some(2);
  RequestSpec once = make_spec("once");
  once.cacheable = false;
  some.announce_all(once);
  CHECK_EQ(some.take().at(0).names.at(0).new_id, -1);
}

TEST("negotiator: a number is refused if the request has changed") {
  Members members(2);
  CHECK_EQ(members.agree("a"), 0);
  CHECK(!members.announce(0, by_id(0, make_spec("a", kLarge + 1))));
  CHECK(!members.announce(0, by_id(99, make_spec("a"))));
}

// What the members of a world of three sent, the third something else.
std::string mismatch(const RequestSpec& usual, const RequestSpec& other) {
  Members members(3);
  CHECK(members.announce_at(0, usual, "train.py:7"));
  CHECK(members.announce_at(1, usual, "train.py:7"));
  CHECK(members.announce_at(2, other, "train.py:9"));
  const std::vector<Response> responses = members.take();
  REQUIRE(responses.size() == 1);
  CHECK(responses[0].kind == Response::Kind::kError);
  CHECK(responses[0].error_kind == ErrorKind::kMismatch);
  CHECK(!members.negotiator.has_pending());
  CHECK(contains(responses[0].message, "rank 0 (host:0), rank 1 (host:1) sent"));
  CHECK(contains(responses[0].message, "rank 2 (host:2) sent"));
  return responses[0].message;
}

TEST("negotiator: a mismatch says what differs, and what each rank sent") {
  RequestSpec usual = make_spec("grad");
  RequestSpec other = usual;
  other.tensors[0].dtype = DType::kInt32;
  const std::string text = mismatch(usual, other);
  CHECK(contains(text, "data types for grad"));
  CHECK(contains(text, "allreduce(Sum) of float32 [4096] at train.py:7"));
  CHECK(contains(text, "allreduce(Sum) of int32 [4096] at train.py:9"));
  other = usual;
  other.tensors[0].shape = {64, 64};
  CHECK(contains(mismatch(usual, other), "tensor shapes"));
  other = usual;
  other.kind = OpKind::kReducescatter;
  CHECK(contains(mismatch(usual, other), "operations"));
  other = usual;
  other.reduce_op = ReduceOp::kMax;
  CHECK(contains(mismatch(usual, other), "reduction operations"));
  other = usual;
  other.prescale = 0.5;
  CHECK(contains(mismatch(usual, other), "prescale or postscale"));
  other = usual;
  other.tensors.push_back(other.tensors[0]);
  CHECK(contains(mismatch(usual, other), "numbers of tensors in the group"));
  usual.kind = OpKind::kBroadcast;
  usual.root = 0;
  other = usual;
  other.root = 1;
  CHECK(contains(mismatch(usual, other), "root ranks"));
}

TEST("negotiator: after a mismatch the name can be agreed") {
  Members members(2);
  CHECK(members.announce(0, in_full(make_spec("a"))));
  CHECK(members.announce(1, in_full(make_spec("a", 2 * kLarge))));
  CHECK_EQ(members.take().size(), 1U);
  CHECK_EQ(members.agree("a"), 0);
  CHECK(members.announce(0, by_id(0, make_spec("a"))));
  CHECK(members.announce(1, in_full(make_spec("a", 2 * kLarge))));
  const std::vector<Response> responses = members.take();
  REQUIRE(responses.size() == 1);
  CHECK(contains(responses[0].message, "rank 0 (host:0) sent allreduce(Sum) of float32 [4096]"));
  CHECK(contains(responses[0].message, "rank 1 (host:1) sent allreduce(Sum) of float32 [8192]"));
}

std::vector<float> result_of(ReduceOp op, double postscale) {
  Members members(3);
  RequestSpec spec = make_spec("small", 2);
  spec.reduce_op = op;
  spec.postscale = postscale;
  CHECK(may_travel_with_announcement(spec, 3, false));
  const std::vector<std::vector<float>> values{{3, -1}, {2, 4}, {1, 0.5}};
  for (const int member : {2, 0, 1})
    CHECK(members.announce(member, with_values(spec, values[static_cast<size_t>(member)])));
  const std::vector<Response> responses = members.take(kNoRoom);
  REQUIRE(responses.size() == 1);
  CHECK(responses[0].kind == Response::Kind::kResult);
  REQUIRE(responses[0].payload.size() == 8);
  std::vector<float> result(2);
  std::memcpy(result.data(), responses[0].payload.data(), 8);
  return result;
}

TEST("negotiator: small allreduces are answered with the result") {
  CHECK(result_of(ReduceOp::kSum, 1.0) == (std::vector<float>{6, 3.5}));
  CHECK(result_of(ReduceOp::kSum, 2.0) == (std::vector<float>{12, 7}));
  CHECK(result_of(ReduceOp::kAverage, 3.0) == (std::vector<float>{6, 3.5}));
  CHECK(result_of(ReduceOp::kMin, 1.0) == (std::vector<float>{1, -1}));
  CHECK(result_of(ReduceOp::kMax, 1.0) == (std::vector<float>{3, 4}));
  CHECK(result_of(ReduceOp::kProduct, 1.0) == (std::vector<float>{6, -2}));
}

TEST("negotiator: what is quantized between hosts travels with the announcement inside of one") {
  RequestSpec spec = make_spec("small", 2);
  spec.quantization = Quantization::kInt8;
  CHECK(may_travel_with_announcement(spec, 3, true));
  CHECK(!may_travel_with_announcement(spec, 3, false));
}

TEST("negotiator: values are added in the order of ranks, however late they come") {
  for (const std::vector<int>& order : {std::vector<int>{0, 1, 2}, {2, 1, 0}, {1, 2, 0}}) {
    Members members(3);
    const RequestSpec spec = make_spec("small", 1);
    const float values[] = {1e8F, 1.0F, -1e8F};
    for (const int member : order) CHECK(members.announce(member, with_values<float>(spec, {values[member]})));
    float result = -1;
    std::memcpy(&result, members.take().at(0).payload.data(), sizeof(result));
    CHECK_EQ(result, 0.0F);
  }
}

TEST("negotiator: a barrier is answered at once") {
  Members members(2);
  RequestSpec barrier;
  barrier.kind = OpKind::kBarrier;
  barrier.name = "barrier";
  members.announce_all(barrier);
  const std::vector<Response> responses = members.take(kNoRoom);
  REQUIRE(responses.size() == 1);
  CHECK(responses[0].kind == Response::Kind::kResult);
  CHECK(responses[0].payload.empty());
}

TEST("negotiator: allgather and alltoall answers carry what each member gives") {
  Members members(2);
  RequestSpec spec = make_spec("rows");
  spec.kind = OpKind::kAllgather;
  for (int member = 0; member < 2; ++member) {
    Announcement announcement = in_full(spec);
    announcement.extents = {10 + member};
    CHECK(members.announce(member, std::move(announcement)));
  }
  const std::vector<Response> responses = members.take();
  REQUIRE(responses.size() == 1);
  CHECK(responses[0].names.at(0).extents == (std::vector<std::vector<int64_t>>{{10}, {11}}));
}

TEST("negotiator: damaged announcements are refused") {
  const auto refused = [](const auto& damage) {
    Members members(2);
    try {
      damage(members);
      static_cast<void>(members.take());
      return false;
    } catch (const Error& error) {
      return error.kind() == ErrorKind::kInternal && contains(error.what(), "rank 1");
    }
  };
  const RequestSpec small = make_spec("small", 2);
  CHECK(refused([&](Members& members) {
    CHECK(members.announce(0, with_values<float>(small, {1, 2})));
    CHECK(members.announce(1, with_values<float>(small, {1})));
  }));
  CHECK(refused([&](Members& members) {
    CHECK(members.announce(0, in_full(make_spec("a"))));
    CHECK(members.announce(1, with_values<float>(make_spec("a"), {1})));
  }));
  RequestSpec gather = make_spec("rows");
  gather.kind = OpKind::kAllgather;
  CHECK(refused([&](Members& members) {
    Announcement whole = in_full(gather);
    whole.extents = {1};
    CHECK(members.announce(0, whole));
    CHECK(members.announce(1, in_full(gather)));
  }));
  CHECK(refused([&](Members& members) {
    CHECK(members.announce(1, in_full(make_spec("twice"))));
    CHECK(members.announce(1, in_full(make_spec("twice"))));
  }));
}

TEST("negotiator: what a member that left would take part in fails, now and later") {
  Members members(3);
  CHECK(members.announce(0, in_full(make_spec("pending"))));
  members.announce_all(make_spec("ready"));
  members.negotiator.member_left("rank 2 (host:2) has left (it closed)");
  std::vector<Response> responses = members.take();
  REQUIRE(responses.size() == 2);
  CHECK(members.announce(1, in_full(make_spec("later"))));
  const std::vector<Response> later = members.take(kNoRoom);
  REQUIRE(later.size() == 1);
  responses.push_back(later[0]);
  for (const Response& response : responses) {
    CHECK(response.kind == Response::Kind::kError);
    CHECK(response.error_kind == ErrorKind::kShutDown);
    CHECK(contains(response.message, "rank 2 (host:2)"));
    CHECK(contains(response.message, "it closed"));
  }
  CHECK(!members.negotiator.has_pending());
  members.negotiator.member_left("rank 1 has left (another reason)");
  CHECK(members.announce(0, in_full(make_spec("last"))));
  CHECK(contains(members.take().at(0).message, "rank 2 (host:2)"));
}

RequestSpec make_unnamed(OpKind kind, uint64_t number) {
  RequestSpec spec = make_spec(std::string(name_of(kind)) + ".noname." + std::to_string(number));
  spec.kind = kind;
  spec.root = kind == OpKind::kBroadcast ? 0 : -1;
  spec.cacheable = false;
  spec.unnamed = number;
  return spec;
}

TEST("negotiator: one number of an unnamed operation cannot stand for two operations") {
  Members members(3);
  CHECK(members.announce_at(0, make_unnamed(OpKind::kAllreduce, 4), "a.py:1"));
  CHECK(members.take().empty());
  CHECK(members.announce_at(2, make_unnamed(OpKind::kBroadcast, 4), "a.py:9"));
  std::vector<Response> responses = members.take();
  REQUIRE(responses.size() == 2);
  for (const Response& response : responses) {
    CHECK(response.kind == Response::Kind::kError);
    CHECK(response.error_kind == ErrorKind::kMismatch);
    CHECK(contains(response.message, "rank 0 (host:0) sent allreduce"));
    CHECK(contains(response.message, "at a.py:1"));
    CHECK(contains(response.message, "rank 2 (host:2) sent broadcast"));
    CHECK(contains(response.message, "at a.py:9"));
  }
  CHECK_EQ(responses[0].names[0].name, "allreduce.noname.4");
  CHECK_EQ(responses[1].names[0].name, "broadcast.noname.4");
  // The member that comes late hears of it too; then all is as new.
  CHECK(members.announce(1, in_full(make_unnamed(OpKind::kAllreduce, 4))));
  responses = members.take();
  REQUIRE(responses.size() == 1);
  CHECK(contains(responses[0].message, "at a.py:9"));
  CHECK(!members.negotiator.has_pending());
  members.announce_all(make_unnamed(OpKind::kAllreduce, 5));
  CHECK_EQ(members.take().size(), 1U);
  members.announce_all(make_unnamed(OpKind::kAllreduce, 4));
  CHECK(members.take().at(0).kind == Response::Kind::kExecute);
}

RequestSpec make_join(bool divide_by_initial_world_size = true) {
  RequestSpec spec;
  spec.kind = OpKind::kJoin;
  spec.name = "join.noname";
  spec.divide_by_initial_world_size = divide_by_initial_world_size;
  spec.cacheable = false;
  return spec;
}

TEST("negotiator: what members announce becomes ready without one that has joined") {
  Members members(3);
  CHECK(members.announce(0, in_full(make_spec("before"))));
  CHECK(members.announce(1, in_full(make_spec("before"))));
  CHECK(members.announce(2, in_full(make_join())));
  std::vector<Response> responses = members.take();
  REQUIRE(responses.size() == 1);
  CHECK(responses[0].absent == std::vector<int32_t>({2}));
  CHECK_EQ(responses[0].num_averaged, 3);
  REQUIRE(responses[0].names[0].spec.size() == 1);
  CHECK_EQ(responses[0].names[0].spec[0].name, "before");
  // What the joined member had announced itself counts.
  CHECK(members.announce(0, in_full(make_join())));
  CHECK(members.announce(1, in_full(make_spec("alone"))));
  responses = members.take();
  REQUIRE(responses.size() == 1);
  CHECK(responses[0].absent == std::vector<int32_t>({0, 2}));
  CHECK(members.announce(1, in_full(make_join())));
  responses = members.take();
  REQUIRE(responses.size() == 1);
  CHECK(responses[0].kind == Response::Kind::kResult);
  int32_t last = -1;
  std::memcpy(&last, responses[0].payload.data(), sizeof(last));
  CHECK_EQ(last, 1);
  CHECK(!members.negotiator.has_pending());
  CHECK(members.announce(0, in_full(make_spec("after"))));
  CHECK(members.take().empty());
}

TEST("negotiator: joins are answered after all that became ready before them") {
  Members members(2);
  CHECK(members.announce(0, in_full(make_spec("x"))));
  CHECK(members.announce(0, in_full(make_join())));
  CHECK(members.announce(1, in_full(make_join())));
  CHECK(members.take(kNoRoom).empty());
  const std::vector<Response> responses = members.take();
  REQUIRE(responses.size() == 2);
  CHECK(responses[0].absent == std::vector<int32_t>({1}));
  CHECK_EQ(responses[1].names[0].name, "join.noname");
}

TEST("negotiator: joined members can ask that Average divides by the others only") {
  Members members(3);
  CHECK(members.announce(1, in_full(make_join(false))));
  for (const int member : {0, 2}) CHECK(members.announce(member, in_full(make_spec("x"))));
  CHECK_EQ(members.take().at(0).num_averaged, 2);
}

TEST("negotiator: no neutral value stands in for the root of a broadcast, or for a rank of the job") {
  Members members(3, {.members = {2, 5, 7}});
  CHECK(members.announce(1, in_full(make_join())));
  RequestSpec broadcast = make_spec("state");
  broadcast.kind = OpKind::kBroadcast;
  broadcast.root = 5;
  for (const int member : {0, 2}) CHECK(members.announce(member, in_full(broadcast)));
  Response response = members.take().at(0);
  CHECK(response.kind == Response::Kind::kError);
  CHECK(contains(response.message, "its root, rank 1 (host:1), has joined"));
  RequestSpec add;
  add.kind = OpKind::kAddProcessSet;
  add.name = "process_set.change";
  for (const int member : {0, 2}) CHECK(members.announce(member, in_full(add)));
  response = members.take().at(0);
  CHECK(response.kind == Response::Kind::kError);
  CHECK(contains(response.message, "rank 1 (host:1) has joined"));
}

Announcement weighted(const RequestSpec& spec, double weight) {
  Announcement announcement = in_full(spec);
  announcement.weight = weight;
  return announcement;
}

TEST("negotiator: the sum of the weights goes with the answer; without any weight there is no average") {
  Members members(2);
  RequestSpec spec = make_spec("x");
  spec.reduce_op = ReduceOp::kAverage;
  spec.weighted = true;
  CHECK(members.announce(0, weighted(spec, 1.0)));
  CHECK(members.announce(1, weighted(spec, 3.0)));
  CHECK_EQ(members.take().at(0).names.at(0).total_weight, 4.0);
  CHECK(members.announce(0, weighted(spec, 0.0)));
  CHECK(members.announce(1, weighted(spec, 0.0)));
  const Response response = members.take().at(0);
  CHECK(response.kind == Response::Kind::kError);
  CHECK(contains(response.message, "the weights of all ranks sum up to 0"));
}

}  // namespace
}  // namespace hvd
