#include <cstring>
#include <random>

#include "engine/messages/control.h"
#include "testing/check.h"

namespace hvd {
namespace {

using testing::kSanitized;

RequestSpec make_spec() {
  RequestSpec spec;
  spec.kind = OpKind::kReducescatter;
  spec.name = "layer.0.weight";
  spec.reduce_op = ReduceOp::kMax;
  spec.prescale = 0.5;
  spec.postscale = -3.0;
  spec.root = 7;
  spec.tensors = {{DType::kBFloat16, {2, 3}}, {DType::kInt64, {}}, {DType::kBool, {0, 1, 5}}};
  spec.cacheable = false;
  spec.on_gpu = true;
  spec.weighted = true;
  spec.divide_by_initial_world_size = false;
  spec.ranks = {1, 5};
  spec.unnamed = 77;
  spec.by_members = true;
  spec.tag = 0x12345678;
  return spec;
}

bool same(const RequestSpec& a, const RequestSpec& b) {
  const auto same_tensor = [](const TensorSpec& x, const TensorSpec& y) {
    return x.dtype == y.dtype && x.shape == y.shape;
  };
  return a.kind == b.kind && a.name == b.name && a.reduce_op == b.reduce_op && a.prescale == b.prescale &&
         a.postscale == b.postscale && a.root == b.root && a.cacheable == b.cacheable && a.on_gpu == b.on_gpu &&
         a.weighted == b.weighted && a.divide_by_initial_world_size == b.divide_by_initial_world_size &&
         a.ranks == b.ranks && a.unnamed == b.unnamed && a.by_members == b.by_members && a.tag == b.tag &&
         std::equal(a.tensors.begin(), a.tensors.end(), b.tensors.begin(), b.tensors.end(), same_tensor);
}

Message make_announcements() {
  Message message;
  message.kind = MessageKind::kAnnounce;
  message.set = 3;
  Announcement full;
  full.digest = 0x123456789abcdef0;
  full.spec = make_spec();
  full.site = 3;
  full.new_site = "train.py:12";
  full.weight = 2.5;
  full.device = 3;
  full.payload = Bytes(17, std::byte{0x5a});
  Announcement by_id;
  by_id.full = false;
  by_id.id = 42;
  by_id.digest = 1;
  by_id.extents = {4, 0, -1};
  by_id.expected = {7, 8};
  message.announcements = {full, by_id, Announcement()};
  return message;
}

Message make_responses() {
  Message message;
  message.kind = MessageKind::kRespond;
  message.set = 9;
  Response execute;
  NameRef known;
  known.by_id = true;
  known.id = 5;
  NameRef fresh;
  fresh.name = "b";
  fresh.new_id = 6;
  fresh.total_weight = 1.5;
  fresh.extents = {{1, 2}, {}, {3}};
  fresh.spec = {make_spec()};
  execute.names = {known, fresh};
  execute.num_averaged = 2;
  execute.absent = {0, 2};
  execute.devices = {1, 0, 5};
  execute.peer = 2;
  Response result;
  result.kind = Response::Kind::kResult;
  result.names.emplace_back().name = "c";
  result.payload = Bytes(3, std::byte{7});
  Response error;
  error.kind = Response::Kind::kError;
  error.names = result.names;
  error.error_kind = ErrorKind::kStalled;
  error.message = "no";
  message.responses = {execute, result, error};
  return message;
}

Message make_end(MessageKind kind) {
  Message message;
  message.kind = kind;
  message.error_kind = ErrorKind::kPeerLost;
  message.text = "rank 2 was lost";
  return message;
}

Message make_leave() {
  Message message;
  message.kind = MessageKind::kLeave;
  message.set = 5;
  message.text = "train.py:9";
  return message;
}

Message make_dissolve() {
  Message message;
  message.kind = MessageKind::kDissolve;
  message.set = 6;
  return message;
}

Message make_give_up() {
  Message message;
  message.kind = MessageKind::kGiveUp;
  message.text = "too long";
  message.waits = {{.set = 2, .name = "a"}};
  return message;
}

Message make_question() {
  Message message;
  message.kind = MessageKind::kInquire;
  message.waits = {{.set = 0, .name = "a"}, {.set = 0xffffffff, .name = ""}};
  return message;
}

Message make_position() {
  Message message;
  message.kind = MessageKind::kPosition;
  message.position.blocked = true;
  message.position.waits = make_question().waits;
  message.position.unready = {
      {.wait = {.set = 1, .name = "b"}, .age = Duration::max(), .waiting = {0, INT32_MAX}, .missing = {INT32_MIN}},
      {.wait = {.set = 0, .name = ""}, .age = Duration::min()}};
  message.position.operations = "waits for a";
  message.position.stacks = "train.py:1";
  return message;
}

std::vector<Bytes> all_messages() {
  Message resend;
  resend.kind = MessageKind::kResend;
  resend.digest = 77;
  return {make_announcements().encode(),
          make_responses().encode(),
          make_end(MessageKind::kBye).encode(),
          make_end(MessageKind::kAbort).encode(),
          resend.encode(),
          make_question().encode(),
          make_leave().encode(),
          make_dissolve().encode(),
          make_give_up().encode(),
          make_position().encode()};
}

// Decodes from memory that ends exactly where the message does, so that the address sanitizer sees every step beyond.
void decode(const Bytes& bytes, size_t length) {
  const auto exact = std::make_unique<std::byte[]>(length);
  std::copy_n(bytes.begin(), length, exact.get());
  static_cast<void>(Message::decode({exact.get(), length}));
}

bool decodes(const Bytes& bytes, size_t length) {
  try {
    decode(bytes, length);
    return true;
  } catch (const Error&) {
    return false;
  }
}

TEST("wire: announcements come back as they were") {
  const Message before = make_announcements();
  const Message after = Message::decode(before.encode());
  REQUIRE(after.kind == MessageKind::kAnnounce);
  CHECK_EQ(after.set, 3U);
  REQUIRE(after.announcements.size() == before.announcements.size());
  for (size_t i = 0; i < before.announcements.size(); ++i) {
    const Announcement& was = before.announcements[i];
    const Announcement& is = after.announcements[i];
    CHECK_EQ(is.full, was.full);
    CHECK_EQ(is.digest, was.digest);
    CHECK_EQ(is.device, was.device);
    CHECK(is.extents == was.extents);
    CHECK(is.expected == was.expected);
    CHECK(is.payload == was.payload);
    if (was.full) CHECK(same(is.spec, was.spec));
    if (!was.full) CHECK_EQ(is.id, was.id);
  }
}

TEST("wire: responses come back as they were") {
  const Message before = make_responses();
  const Message after = Message::decode(before.encode());
  CHECK_EQ(after.set, 9U);
  REQUIRE(after.responses.size() == 3);
  for (size_t i = 0; i < 3; ++i) {
    const Response& was = before.responses[i];
    const Response& is = after.responses[i];
    CHECK(is.kind == was.kind);
    CHECK(is.devices == was.devices);
    CHECK_EQ(is.peer, was.peer);
    CHECK(is.payload == was.payload);
    CHECK_EQ(is.message, was.message);
    REQUIRE(is.names.size() == was.names.size());
    for (size_t n = 0; n < was.names.size(); ++n) {
      CHECK_EQ(is.names[n].by_id, was.names[n].by_id);
      CHECK_EQ(is.names[n].id, was.names[n].id);
      CHECK_EQ(is.names[n].name, was.names[n].name);
      CHECK_EQ(is.names[n].new_id, was.names[n].new_id);
      CHECK(is.names[n].extents == was.names[n].extents);
    }
  }
  CHECK(after.responses[2].error_kind == ErrorKind::kStalled);
}

TEST("wire: ends come back as they were") {
  for (const MessageKind kind : {MessageKind::kBye, MessageKind::kAbort}) {
    const Message after = Message::decode(make_end(kind).encode());
    CHECK(after.kind == kind);
    CHECK(after.error_kind == ErrorKind::kPeerLost);
    CHECK_EQ(after.text, "rank 2 was lost");
  }
}

TEST("wire: leaves and what is given up come back as they were") {
  const Message leave = Message::decode(make_leave().encode());
  CHECK(leave.kind == MessageKind::kLeave);
  CHECK_EQ(leave.set, 5U);
  CHECK_EQ(leave.text, "train.py:9");
  CHECK_EQ(Message::decode(make_dissolve().encode()).set, 6U);
  const Message given_up = Message::decode(make_give_up().encode());
  CHECK_EQ(given_up.text, "too long");
  CHECK(given_up.waits == make_give_up().waits);
}

TEST("wire: questions and positions come back as they were") {
  CHECK(Message::decode(make_question().encode()).waits == make_question().waits);
  const PositionReport was = make_position().position;
  const PositionReport is = Message::decode(make_position().encode()).position;
  CHECK(is.blocked && !is.held);
  CHECK(is.waits == was.waits);
  REQUIRE(is.unready.size() == 2);
  for (size_t i = 0; i < 2; ++i) {
    CHECK(is.unready[i].wait == was.unready[i].wait);
    CHECK(is.unready[i].age == was.unready[i].age);
    CHECK(is.unready[i].waiting == was.unready[i].waiting);
    CHECK(is.unready[i].missing == was.unready[i].missing);
  }
  CHECK_EQ(is.operations + is.activity + is.stacks, was.operations + was.stacks);
}

// The numbers of waits, of what is not ready, and of its ranks, each in the place of the right one.
TEST("wire: positions with more elements than bytes are refused") {
  const Bytes bytes = make_position().encode();
  const size_t head = sizeof(uint8_t) + sizeof(uint32_t) + 2 * sizeof(uint8_t);
  const size_t unready_at = head + sizeof(uint32_t) + 4 * sizeof(uint32_t) + 1;
  const size_t waiting_at = unready_at + sizeof(uint32_t) + 2 * sizeof(uint32_t) + 1 + sizeof(int64_t);
  for (const size_t place : {head, unready_at, waiting_at}) {
    for (const uint32_t count : {0x100U, 0x7fffffffU, 0xffffffffU}) {
      Bytes damaged = bytes;
      std::memcpy(damaged.data() + place, &count, sizeof(count));
      CHECK(!decodes(damaged, damaged.size()));
    }
  }
}

TEST("wire: every truncated message is refused") {
  for (const Bytes& bytes : all_messages()) {
    CHECK(decodes(bytes, bytes.size()));
    for (size_t length = 0; length < bytes.size(); ++length) CHECK(!decodes(bytes, length));
  }
}

TEST("wire: damaged messages are read or refused, never crash") {
  std::mt19937_64 random(1);
  const std::vector<Bytes> messages = all_messages();
  const int rounds = kSanitized ? 20'000 : 100'000;
  for (int round = 0; round < rounds; ++round) {
    Bytes bytes;
    if (round % 2 == 0) {
      bytes.resize(random() % 96);
      for (std::byte& byte : bytes) byte = static_cast<std::byte>(random() % (round % 4 == 0 ? 256 : 6));
    } else {
      bytes = messages[random() % messages.size()];
      for (int hits = 0; hits < 3; ++hits) bytes[random() % bytes.size()] = static_cast<std::byte>(random());
    }
    decodes(bytes, bytes.size());
  }
}

TEST("wire: absurd lengths are refused before memory is taken") {
  for (const uint32_t length : {5U, 0x7fffffffU, 0xffffffffU}) {
    WireWriter out;
    out.put(length);
    out.put(uint32_t{0});
    const Bytes bytes = out.take();
    const auto refused = [&](const auto& read) {
      try {
        WireReader in(bytes);
        read(in);
        return false;
      } catch (const Error& error) {
        return error.kind() == ErrorKind::kInternal;
      }
    };
    CHECK(refused([](WireReader& in) { static_cast<void>(in.get_list<int64_t>()); }));
    CHECK(refused([](WireReader& in) { static_cast<void>(in.get_bytes()); }));
    CHECK(refused([](WireReader& in) { static_cast<void>(in.get_string()); }));
    CHECK(refused([](WireReader& in) { static_cast<void>(in.get_count(1)); }));
  }
}

TEST("wire: the digest covers what must agree and nothing else") {
  const RequestSpec spec = make_spec();
  const auto changes = [&](const auto& change) {
    RequestSpec other = spec;
    change(other);
    return other.digest() != spec.digest();
  };
  CHECK(changes([](RequestSpec& s) { s.name += 'x'; }));
  CHECK(changes([](RequestSpec& s) { s.kind = OpKind::kAllreduce; }));
  CHECK(changes([](RequestSpec& s) { s.reduce_op = ReduceOp::kMin; }));
  CHECK(changes([](RequestSpec& s) { s.prescale = 1.0; }));
  CHECK(changes([](RequestSpec& s) { s.postscale = 3.0; }));
  CHECK(changes([](RequestSpec& s) { s.root = 0; }));
  CHECK(changes([](RequestSpec& s) { s.tensors.pop_back(); }));
  CHECK(changes([](RequestSpec& s) { s.tensors[0].dtype = DType::kFloat16; }));
  CHECK(changes([](RequestSpec& s) { s.tensors[0].shape = {3, 2}; }));
  CHECK(changes([](RequestSpec& s) { s.tensors[0].shape = {6}; }));
  CHECK(changes([](RequestSpec& s) { s.weighted = false; }));
  CHECK(changes([](RequestSpec& s) { s.on_gpu = false; }));
  CHECK(changes([](RequestSpec& s) { s.divide_by_initial_world_size = true; }));
  CHECK(changes([](RequestSpec& s) { s.ranks = {1, 4}; }));
  CHECK(!changes([](RequestSpec& s) { s.unnamed = 1; }));
  CHECK(!changes([](RequestSpec& s) { s.cacheable = true; }));
  RequestSpec gather = spec;
  gather.kind = OpKind::kAllgather;
  gather.tensors = {{DType::kFloat32, {4, 2}}};
  RequestSpec longer = gather;
  longer.tensors[0].shape[0] = 9;
  CHECK_EQ(gather.digest(), longer.digest());
  longer.tensors[0].shape[1] = 3;
  CHECK(gather.digest() != longer.digest());
}

}  // namespace
}  // namespace hvd
