// What a rank of the job may say when its memory is damaged, or somebody has taken it over: it may end the job, but
// nothing that it says leads to memory that is not there, and nobody waits for ever.
#include <cstring>

#include "engine/agreement/negotiator.h"
#include "engine/engine.h"
#include "testing/check.h"
#include "testing/log.h"
#include "testing/world.h"
#include "transport/ring_link.h"

namespace hvd {
namespace {

using testing::make_operation;

RequestSpec make_spec(OpKind kind, const std::string& name, std::vector<TensorSpec> tensors) {
  RequestSpec spec;
  spec.kind = kind;
  spec.name = name;
  spec.tensors = std::move(tensors);
  return spec;
}

Announcement announce(const RequestSpec& spec) {
  Announcement announcement;
  announcement.spec = spec;
  announcement.digest = spec.digest();
  return announcement;
}

// The text of the error of kind kInternal that `body` throws, or "" if it throws none.
std::string refusal_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::kInternal);
    return error.what();
  }
  return "";
}

TEST("hostile peers: requests that no rank can submit are refused with the name of the sender") {
  const TensorSpec small{DType::kFloat32, {2, 2}};
  const TensorSpec integers{DType::kInt32, {2, 2}};
  RequestSpec adasum = make_spec(OpKind::kAllreduce, "a", {integers});
  adasum.reduce_op = ReduceOp::kAdasum;
  const std::vector<RequestSpec> impossible{
      make_spec(OpKind::kAllreduce, "a", {}),
      make_spec(OpKind::kAllreduce, "a", {{DType::kFloat32, {-1}}}),
      make_spec(OpKind::kAllreduce, "a", {{DType::kFloat32, {int64_t{1} << 40, int64_t{1} << 40}}}),
      make_spec(OpKind::kAllgather, "a", {{DType::kFloat32, {}}}),
      make_spec(OpKind::kAlltoall, "a", {small, small}),
      make_spec(OpKind::kBarrier, "a", {small}),
      make_spec(OpKind::kJoin, "a", {}),
      make_spec(OpKind::kAllreduce, kJoinName, {small}),
      adasum,
  };
  for (const RequestSpec& spec : impossible) {
    Negotiator negotiator({"rank 0", "rank 1"}, {});
    const std::string text = refusal_of([&] { static_cast<void>(negotiator.announce(1, announce(spec), {})); });
    CHECK(contains(text, "rank 1"));
  }
}

// Its entry would stand twice among those that are ready, and be used after its end.
TEST("hostile peers: who has joined cannot announce what is ready without it") {
  Negotiator negotiator({"rank 0", "rank 1"}, {});
  CHECK(negotiator.announce(1, announce(make_spec(OpKind::kJoin, kJoinName, {})), {}));
  const RequestSpec spec = make_spec(OpKind::kAllreduce, "a", {{DType::kFloat32, {5000}}});
  CHECK(negotiator.announce(0, announce(spec), {}));
  const std::string text = refusal_of([&] { static_cast<void>(negotiator.announce(1, announce(spec), {})); });
  CHECK(contains(text, "rank 1 announced a twice"));
  CHECK_EQ(negotiator.take_responses({}).size(), size_t{1});
}

TEST("hostile peers: a number of an unnamed operation cannot stand for one that is being executed") {
  Negotiator negotiator({"rank 0", "rank 1"}, {});
  RequestSpec spec = make_spec(OpKind::kAllreduce, "a", {{DType::kFloat32, {5000}}});
  spec.unnamed = 1;
  CHECK(negotiator.announce(0, announce(spec), {}));
  CHECK(negotiator.announce(1, announce(spec), {}));  // now it is ready
  spec.name = "b";
  CHECK(contains(refusal_of([&] { static_cast<void>(negotiator.announce(1, announce(spec), {})); }), "rank 1"));
  CHECK_EQ(negotiator.take_responses({}).size(), size_t{1});
}

// A link whose incoming ring the test writes as it likes.
struct DamagedRing {
  static constexpr size_t kCapacity = 4096;
  std::vector<std::byte> memory = std::vector<std::byte>(2 * kCapacity);
  RingWords out;
  RingWords in;
  DoorbellWords bell;
  RingLink link{{&out, memory.data(), kCapacity}, {&in, memory.data() + kCapacity, kCapacity}, Doorbell(&bell, -1)};

  void put(size_t offset, uint32_t bytes) {
    const FrameHeader header{.key = {}, .bytes = bytes};
    std::memcpy(memory.data() + kCapacity + offset, &header, sizeof(header));
  }
  std::string refusal(uint64_t written) {
    in.written.store(written);
    return refusal_of([&] { link.poll(); });
  }
};

TEST("hostile peers: frames in shared memory end where their sender says, and inside the ring") {
  for (const uint64_t written : {uint64_t{64}, uint64_t{65}, uint64_t{4096 + 64}, ~uint64_t{0}}) {
    DamagedRing ring;
    ring.put(0, 1000);  // longer than what was written, or not as long
    CHECK(contains(ring.refusal(written), "memory is damaged"));
  }
  DamagedRing too_long;
  too_long.put(0, 4096);
  CHECK(contains(too_long.refusal(4096), "memory is damaged"));
  DamagedRing wraps_past_the_end;
  wraps_past_the_end.put(0, 0xffffffff);
  CHECK(contains(wraps_past_the_end.refusal(128), "memory is damaged"));
  DamagedRing backwards;
  backwards.put(0, 0);
  CHECK_EQ(backwards.refusal(64), "");
  CHECK(contains(backwards.refusal(0), "memory is damaged"));
}

// An engine with two operations under way, and a coordinator that is only a transport.
struct Victim {
  std::vector<TransportParts> parts = testing::make_transports(2, testing::Wire::kSockets);
  testing::Log log;
  Transport transport{std::move(parts[0])};
  ControlPlane control{transport};
  std::unique_ptr<Engine> engine;
  std::vector<float> values = std::vector<float>(6);
  std::vector<float> more = std::vector<float>(6);
  std::shared_ptr<Operation> gathered = make_operation(OpKind::kAllgather, "g", {testing::view(values, {3, 2})}, {});
  std::shared_ptr<Operation> exchanged = make_operation(OpKind::kAlltoall, "x", {testing::view(values, {2, 3})}, {});
  std::shared_ptr<Operation> reduced =
      make_operation(OpKind::kAllreduce, "r", {testing::view(values)}, {testing::view(more)});

  Victim() {
    EngineOptions options;
    options.log = log.sink();
    engine = std::make_unique<Engine>(std::move(parts[1]), options);
    for (const auto& operation : all()) engine->submit(operation);
  }
  [[nodiscard]] std::vector<std::shared_ptr<Operation>> all() const { return {gathered, exchanged, reduced}; }

  // Sends the answer; expects that every operation fails soon, and says why.
  void expect_failure(Response response, const std::string& why) {
    Message message;
    message.kind = MessageKind::kRespond;
    message.responses = {std::move(response)};
    expect_failure_of(message, why);
  }
  void expect_failure_of(const Message& message, const std::string& why) {
    control.send(1, message);
    expect_all_fail(why);
  }

  // Sends bytes where a control message should be.
  void expect_failure_of_bytes(uint32_t num_bytes, const std::string& why) {
    Link& link = transport.control(1);
    std::byte* room = link.try_reserve(num_bytes);
    REQUIRE(room != nullptr);
    std::memset(room, 0xff, num_bytes);
    link.commit({.key = {}, .bytes = num_bytes});
    CHECK(link.flush());
    expect_all_fail(why);
  }

 private:
  void expect_all_fail(const std::string& why) {
    for (const auto& operation : all()) {
      REQUIRE(engine->wait(*operation, std::chrono::seconds(20)));
      REQUIRE(operation->error().has_value());
      CHECK(contains(operation->error()->what(), why));
    }
  }
};

Response execution_of(const std::vector<std::string>& names, std::vector<std::vector<int64_t>> extents = {}) {
  Response response;
  for (const std::string& name : names) response.names.emplace_back().name = name;
  response.names.front().extents = std::move(extents);
  response.num_averaged = 2;
  return response;
}

TEST("hostile peers: bytes that are no message end the job with the name of their sender") {
  for (const uint32_t num_bytes : {1U, 9U, 100U}) Victim().expect_failure_of_bytes(num_bytes, "rank 0: ");
}

TEST("hostile peers: a coordinator cannot order what does not fit to what was submitted") {
  Victim().expect_failure(execution_of({"g"}, {{1}, {4}}), "numbers of rows");  // this rank has 3
  Victim().expect_failure(execution_of({"g"}, {{1}}), "numbers of rows");
  Victim().expect_failure(execution_of({"g"}, {{-7}, {3}}), "numbers of rows");
  Victim().expect_failure(execution_of({"g"}, {{int64_t{1} << 61}, {3}}), "numbers of rows");
  Victim().expect_failure(execution_of({"x"}, {{1, 1}, {1, 7}}), "numbers of rows");  // this rank gives 1 and 1
  Victim().expect_failure(execution_of({"x"}, {{1}, {1, 1}}), "numbers of rows");
  Victim().expect_failure(execution_of({"r", "g"}), "different kinds");
  Victim().expect_failure(execution_of({"r", "r"}), "has not submitted");
  Response nobodys = execution_of({"r"});
  nobodys.num_averaged = 0;
  Victim().expect_failure(nobodys, "average over nothing");
}

Message position_with(std::vector<Unready> unready) {
  Message message;
  message.kind = MessageKind::kPosition;
  message.position.blocked = message.position.held = true;
  message.position.waits = {{.set = 0, .name = "x"}, {.set = 77, .name = "x"}, {.set = 0, .name = ""}};
  message.position.unready = std::move(unready);
  return message;
}

TEST("hostile peers: a position cannot name ranks that do not exist, or more than there are") {
  const Wait wait{.set = 0, .name = "r"};
  for (const std::vector<int32_t>& ranks :
       {std::vector<int32_t>{2}, {-1}, {0, INT32_MAX}, {INT32_MIN}, std::vector<int32_t>(1000)}) {
    Victim().expect_failure_of(position_with({{.wait = wait, .waiting = ranks}}), "rank 0 says that r lacks ranks");
    Victim().expect_failure_of(position_with({{.wait = wait, .missing = ranks}}), "rank 0 says that r lacks ranks");
  }
}

TEST("hostile peers: questions and positions about what does not exist change nothing") {
  Victim victim;
  Message question;
  question.kind = MessageKind::kInquire;
  question.waits = {{.set = 77, .name = "r"}, {.set = 0, .name = "r"}, {.set = 0, .name = ""}};
  victim.control.send(1, position_with({{.wait = {.set = 77, .name = ""}, .age = Duration::min(), .missing = {1}}}));
  victim.control.send(1, question);
  std::optional<PositionReport> answer;
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!answer && std::chrono::steady_clock::now() < until) {
    victim.transport.notice(std::chrono::milliseconds(10));
    victim.control.receive([&](int, const Message& message) {
      if (message.kind == MessageKind::kPosition) answer = message.position;
    });
  }
  REQUIRE(answer.has_value());
  CHECK(answer->unready.empty());  // it coordinates nothing
  CHECK(!victim.engine->error().has_value());
}

// Answers of each kind to the questions of a coordinator that lacks this rank: it may report them, and goes on.
TEST("hostile peers: a coordinator bears any answer to its questions") {
  std::vector<TransportParts> parts = testing::make_transports(2, testing::Wire::kSockets);
  Transport transport(std::move(parts[1]));
  ControlPlane control(transport);
  testing::Log log;
  EngineOptions options;
  options.log = log.sink();
  options.stall_check_time = std::chrono::milliseconds(20);
  options.deadlock_timeout = std::chrono::milliseconds(20);
  Engine engine(std::move(parts[0]), options);
  std::vector<float> values(6);
  const auto alone = make_operation(OpKind::kAllreduce, "x", {testing::view(values)}, {testing::view(values)});
  engine.submit(alone);
  const std::vector<std::vector<Unready>> told = {
      {{.wait = {.set = 77, .name = ""}, .age = Duration::max(), .waiting = {0, 0}, .missing = {1, 1}}},
      {{.wait = {.set = 0, .name = "x"}, .age = Duration::min(), .waiting = {1}, .missing = {0}}},
      {{.wait = {.set = 0, .name = std::string(100'000, 'n')}}, {.wait = {.set = 0, .name = ""}, .missing = {0}}},
      {}};
  size_t num_answers = 0;
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (num_answers < told.size() && std::chrono::steady_clock::now() < until) {
    static_cast<void>(engine.wait(*alone, std::chrono::milliseconds(1)));
    transport.notice(std::chrono::milliseconds(10));
    control.receive([&](int, const Message& message) {
      if (message.kind != MessageKind::kInquire) return;
      control.send(0, position_with(told[num_answers % told.size()]));
      ++num_answers;
    });
  }
  CHECK_EQ(num_answers, told.size());
  CHECK(!engine.error().has_value());
  engine.close("the test ends");
  CHECK(alone->done());
}

TEST("hostile peers: a result belongs to an operation that can have one, and has its length") {
  Response result = execution_of({"r"});
  result.kind = Response::Kind::kResult;
  result.payload = Bytes(3);
  Victim().expect_failure(result, "too short");
  result.names.front().name = "g";
  Victim().expect_failure(result, "have to execute");
}

TEST("hostile peers: what a rank that has joined is told to take part in is checked as what others submit") {
  Response response = execution_of({"s"});
  response.absent = {1};
  response.names.front().spec = {make_spec(OpKind::kAllgather, "s", {{DType::kFloat32, {}}})};
  Victim().expect_failure(response, "no rank can submit");
  response.names.front().spec = {make_spec(OpKind::kBroadcast, "s", {{DType::kFloat32, {2}}})};
  response.names.front().spec.front().root = 77;
  Victim().expect_failure(response, "root that is not a member");
}

}  // namespace
}  // namespace hvd
