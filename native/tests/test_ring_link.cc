#include <cstring>
#include <random>
#include <thread>

#include "base/error.h"
#include "testing/check.h"
#include "transport/ring_link.h"

namespace hvd {
namespace {

using testing::kSanitized;

constexpr LinkKind kKind = LinkKind::kControl;  // the smaller ring
constexpr Duration kPatience = std::chrono::seconds(20);

// Two ranks of a host and their links to each other.
struct Pair {
  std::shared_ptr<Segment> segments[2] = {Segment::create_private(2), Segment::create_private(2)};
  Doorbell bells[2] = {Doorbell(segments[0]->doorbell(), -1), Doorbell(segments[1]->doorbell(), -1)};
  RingLink a{segments[1]->ring(0, kKind), segments[0]->ring(1, kKind), bells[1]};
  RingLink b{segments[0]->ring(1, kKind), segments[1]->ring(0, kKind), bells[0]};
  size_t capacity = segments[0]->ring(1, kKind).capacity;
};

std::byte pattern(uint32_t sequence, size_t index) { return static_cast<std::byte>(sequence * 31 + index); }

bool send(Link& link, const FrameKey& key, size_t bytes) {
  std::byte* room = link.try_reserve(bytes);
  if (room == nullptr) return false;
  for (size_t i = 0; i < bytes; ++i) room[i] = pattern(key.sequence, i);
  link.commit({key, static_cast<uint32_t>(bytes)});
  return true;
}

bool intact(const Frame& frame) {
  for (size_t i = 0; i < frame.header.bytes; ++i) {
    if (frame.payload[i] != pattern(frame.header.key.sequence, i)) return false;
  }
  return true;
}

TEST("ring link: frames arrive in order and intact, at all offsets of the ring") {
  Pair pair;
  std::mt19937 random(2);
  uint32_t sent = 0;
  uint32_t received = 0;
  const uint32_t total = 20'000;
  while (received < total) {
    while (sent < total) {
      const size_t most = random() % 8 == 0 ? pair.a.max_frame_bytes() : 300;
      if (!send(pair.a, {1, sent, 2}, random() % (most + 1))) break;
      ++sent;
      if (random() % 4 == 0) break;
    }
    pair.b.poll();
    for (uint32_t take = random() % 6; take > 0; --take) {
      Frame* frame = pair.b.front();
      if (frame == nullptr) break;
      REQUIRE(frame->header.key == (FrameKey{1, received, 2}));
      REQUIRE(intact(*frame));
      pair.b.consume(*frame);
      ++received;
    }
  }
  CHECK(!pair.b.poll());
  CHECK(pair.b.front() == nullptr);
}

TEST("ring link: frames of no bytes and of the greatest length") {
  Pair pair;
  for (uint32_t round = 0; round < 2000; ++round) {
    const size_t bytes = round % 2 == 0 ? 0 : pair.a.max_frame_bytes();
    REQUIRE(send(pair.a, {0, round, 0}, bytes));
    REQUIRE(pair.b.poll());
    Frame* frame = pair.b.find({0, round, 0});
    REQUIRE(frame != nullptr);
    CHECK_EQ(frame->header.bytes, bytes);
    CHECK(intact(*frame));
    pair.b.consume(*frame);
  }
}

TEST("ring link: a full ring gives no room, and rings when there is some") {
  Pair pair;
  uint32_t sent = 0;
  while (send(pair.a, {0, sent, 0}, 1000)) ++sent;
  CHECK_EQ(sent, pair.capacity / (64 + 1024));
  CHECK(pair.a.try_reserve(1000) == nullptr);
  REQUIRE(pair.b.poll());
  const uint32_t before = pair.bells[0].events();
  Frame* frame = pair.b.front();
  REQUIRE(frame != nullptr);
  pair.b.consume(*frame);
  CHECK(pair.bells[0].events() != before);
  CHECK(send(pair.a, {0, sent, 0}, 1000));
  for (uint32_t next = 1; next <= sent; ++next) {
    pair.b.poll();
    frame = pair.b.front();
    REQUIRE(frame != nullptr);
    CHECK_EQ(frame->header.key.sequence, next);
    CHECK(intact(*frame));
    pair.b.consume(*frame);
  }
}

TEST("ring link: asking again for room, in vain or not, changes nothing") {
  Pair pair;
  uint32_t sent = 0;
  uint32_t received = 0;
  std::mt19937 random(3);
  while (received < 3000) {
    static_cast<void>(pair.a.try_reserve(random() % pair.a.max_frame_bytes()));
    if (send(pair.a, {0, sent, 0}, random() % 9000)) ++sent;
    pair.b.poll();
    Frame* frame = pair.b.front();
    if (frame == nullptr || random() % 3 == 0) continue;
    REQUIRE(frame->header.key.sequence == received);
    REQUIRE(intact(*frame));
    pair.b.consume(*frame);
    ++received;
  }
}

TEST("ring link: frames are found by key and used in any order") {
  Pair pair;
  std::mt19937 random(4);
  for (uint32_t round = 0; round < 200; ++round) {
    std::vector<uint32_t> lanes;
    while (send(pair.a, {7, round, static_cast<uint32_t>(lanes.size())}, random() % 5000)) {
      lanes.push_back(static_cast<uint32_t>(lanes.size()));
    }
    pair.b.poll();
    CHECK(pair.b.find({7, round + 1, 0}) == nullptr);
    CHECK(pair.b.find({8, round, 0}) == nullptr);
    std::shuffle(lanes.begin(), lanes.end(), random);
    for (const uint32_t lane : lanes) {
      Frame* frame = pair.b.find({7, round, lane});
      REQUIRE(frame != nullptr);
      CHECK(intact(*frame));
      pair.b.consume(*frame);
      CHECK(pair.b.find({7, round, lane}) == nullptr);
    }
  }
}

TEST("ring link: of two frames with one key, the older is found first") {
  Pair pair;
  REQUIRE(send(pair.a, {1, 1, 1}, 10));
  REQUIRE(send(pair.a, {1, 1, 1}, 20));
  pair.b.poll();
  CHECK_EQ(pair.b.find({1, 1, 1})->header.bytes, 10U);
  pair.b.consume(*pair.b.find({1, 1, 1}));
  CHECK_EQ(pair.b.find({1, 1, 1})->header.bytes, 20U);
}

TEST("ring link: frames in the way are set aside, only if the peer wants room") {
  Pair pair;
  uint32_t sent = 0;
  while (sent < 5 && send(pair.a, {0, sent, 0}, 1000)) ++sent;
  pair.b.poll();
  CHECK(!pair.b.set_aside());
  while (send(pair.a, {0, sent, 0}, 1000)) ++sent;
  pair.b.poll();
  CHECK(pair.b.set_aside());
  CHECK(!pair.b.set_aside());
  const uint32_t first_behind = sent;
  while (send(pair.a, {0, sent, 0}, 1000)) ++sent;
  CHECK(sent > first_behind + 10);
  pair.b.poll();
  for (uint32_t next = sent; next-- > 0;) {
    Frame* frame = pair.b.find({0, next, 0});
    REQUIRE(frame != nullptr);
    CHECK(intact(*frame));
    pair.b.consume(*frame);
  }
  CHECK(send(pair.a, {0, sent, 0}, pair.a.max_frame_bytes()));
}

TEST("ring link: a header that cannot be is an error") {
  Pair pair;
  REQUIRE(send(pair.a, {0, 0, 0}, 100));
  const FrameHeader absurd{{0, 0, 0}, static_cast<uint32_t>(pair.capacity)};
  std::memcpy(pair.segments[1]->ring(0, kKind).data, &absurd, sizeof(absurd));
  for (int again = 0; again < 2; ++again) {
    try {
      pair.b.poll();
      CHECK(false);
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::kInternal);
    }
  }
}

// Both sides sleep whenever they cannot go on; a lost wake-up shows as a timeout.
TEST("ring link: two threads, no lost wake-up when the ring is full or empty") {
  Pair pair;
  const uint32_t total = kSanitized ? 5'000 : 50'000;
  std::atomic<int> num_timeouts{0};
  const auto sleep = [&](const Doorbell& bell, uint32_t seen) {
    const auto start = std::chrono::steady_clock::now();
    bell.wait_futex(seen, kPatience);
    if (std::chrono::steady_clock::now() - start >= kPatience) ++num_timeouts;
  };
  std::thread sender([&] {
    for (uint32_t sent = 0; sent < total && num_timeouts == 0;) {
      const uint32_t seen = pair.bells[0].events();
      if (send(pair.a, {0, sent, 0}, sent * 37 % 4000)) {
        ++sent;
      } else {
        sleep(pair.bells[0], seen);
      }
    }
  });
  bool all_intact = true;
  for (uint32_t received = 0; received < total && num_timeouts == 0;) {
    const uint32_t seen = pair.bells[1].events();
    pair.b.poll();
    Frame* frame = pair.b.front();
    if (frame == nullptr) {
      sleep(pair.bells[1], seen);
      continue;
    }
    all_intact = all_intact && frame->header.key.sequence == received && intact(*frame);
    pair.b.consume(*frame);
    ++received;
  }
  sender.join();
  CHECK(all_intact);
  CHECK_EQ(num_timeouts.load(), 0);
}

}  // namespace
}  // namespace hvd
