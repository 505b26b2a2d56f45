// Ranks on different hosts: several connections for data, and the end of all connections.
#include <cstring>
#include <map>
#include <thread>

#include "testing/check.h"
#include "testing/world.h"
#include "transport/transport.h"

namespace hvd::testing {
namespace {

constexpr Duration kPatience = std::chrono::seconds(20);

// Two ranks on two hosts.
struct Pair {
  explicit Pair(int num_streams, const std::function<ConnectedPair()>& make_pair = make_tcp_pair) {
    for (TransportParts& parts : make_socket_transports(2, {}, num_streams, make_pair)) {
      ranks.push_back(std::make_unique<Transport>(std::move(parts)));
    }
  }
  std::vector<std::unique_ptr<Transport>> ranks;
};

bool send(Link& link, const FrameKey& key, size_t bytes) {
  std::byte* room = link.try_reserve(bytes);
  if (room == nullptr) return false;
  std::memset(room, static_cast<int>(key.lane % 251), bytes);
  link.commit({key, static_cast<uint32_t>(bytes)});
  return true;
}

bool intact(const Frame& frame) {
  for (size_t i = 0; i < frame.header.bytes; ++i) {
    if (frame.payload[i] != static_cast<std::byte>(frame.header.key.lane % 251)) return false;
  }
  return true;
}

TEST("tcp transport: lanes at any regular distance are spread over all streams, one lane stays on one") {
  for (const int num_streams : {1, 2, 3, 8}) {
    const Pair pair(num_streams, make_socket_pair);
    for (const uint32_t distance : {1U, 2U, 3U, 4U, 8U, 64U}) {
      std::map<const Link*, int> uses;
      const uint32_t num_lanes = 100 * static_cast<uint32_t>(num_streams);
      for (uint32_t i = 0; i < num_lanes; ++i) {
        const FrameKey key{0, 7, i * distance};
        const Link& link = pair.ranks[0]->data(1, key);
        CHECK(&link == &pair.ranks[0]->data(1, key));
        ++uses[&link];
      }
      REQUIRE(static_cast<int>(uses.size()) == num_streams);
      for (const auto& [link, count] : uses) CHECK(count > 80 && count < 120);
    }
  }
}

TEST("tcp transport: a stream that is held up does not hold up the others") {
  const Pair pair(2);
  Transport& from = *pair.ranks[0];
  Transport& to = *pair.ranks[1];
  const FrameKey stuck{0, 1, 0};
  FrameKey free = stuck;
  while (&from.data(1, free) == &from.data(1, stuck)) ++free.lane;
  uint32_t num_stuck = 0;
  const TimePoint until = std::chrono::steady_clock::now() + kPatience;
  while (send(from.data(1, stuck), stuck, 200'000)) {
    ++num_stuck;
    REQUIRE(std::chrono::steady_clock::now() < until);
  }
  REQUIRE(send(from.data(1, free), free, 5000));
  Frame* frame = nullptr;
  while ((frame = to.data(0, free).find(free)) == nullptr) {
    REQUIRE(std::chrono::steady_clock::now() < until);
    to.notice(std::chrono::milliseconds(10));
    to.data(0, free).poll();
  }
  CHECK(intact(*frame));
  to.data(0, free).consume(*frame);
  while (num_stuck > 0) {
    REQUIRE(std::chrono::steady_clock::now() < until);
    from.flush();
    to.poll_data();
    frame = to.data(0, stuck).find(stuck);
    if (frame == nullptr) continue;
    CHECK(intact(*frame));
    to.data(0, stuck).consume(*frame);
    --num_stuck;
  }
}

// Without waiting for the acknowledgement the close would reset the connection, because there is unread input.
TEST("tcp transport: what was sent arrives although the sender closes with unread input") {
  for (int round = 0; round < (kSanitized ? 3 : 10); ++round) {
    Pair pair(2);
    constexpr uint32_t kNumFrames = 64;
    const TimePoint until = std::chrono::steady_clock::now() + kPatience;
    for (uint32_t lane = 0; lane < 8; ++lane) REQUIRE(send(pair.ranks[1]->data(0, {0, 1, lane}), {0, 1, lane}, 20'000));
    std::thread leaver([&] {
      Transport& transport = *pair.ranks[0];
      for (uint32_t lane = 0; lane < kNumFrames;) {
        if (send(transport.data(1, {0, 0, lane}), {0, 0, lane}, 200'000)) {
          ++lane;
        } else {
          transport.notice(std::chrono::milliseconds(10));
        }
        if (std::chrono::steady_clock::now() > until) return;
      }
      while (!(transport.flush() && transport.finish_sending(true)) && std::chrono::steady_clock::now() < until) {
        transport.notice(std::chrono::milliseconds(10));
      }
      pair.ranks[0].reset();
    });
    Transport& transport = *pair.ranks[1];
    uint32_t received = 0;
    while (received < kNumFrames && std::chrono::steady_clock::now() < until) {
      transport.notice(std::chrono::milliseconds(10));
      transport.poll_data();
      for (uint32_t lane = 0; lane < kNumFrames; ++lane) {
        Frame* frame = transport.data(0, {0, 0, lane}).find({0, 0, lane});
        if (frame == nullptr) continue;
        CHECK(intact(*frame));
        transport.data(0, {0, 0, lane}).consume(*frame);
        ++received;
      }
      if (!transport.data_may_follow(0)) break;
    }
    CHECK_EQ(received, kNumFrames);
    leaver.join();
  }
}

TEST("tcp transport: the end waits for nobody who is gone") {
  Pair pair(2);
  for (uint32_t lane = 0; lane < 20; ++lane) send(pair.ranks[0]->data(1, {0, 0, lane}), {0, 0, lane}, 200'000);
  pair.ranks[1].reset();
  const TimePoint start = std::chrono::steady_clock::now();
  Transport& transport = *pair.ranks[0];
  while (!(transport.flush() && transport.finish_sending(true))) {
    REQUIRE(std::chrono::steady_clock::now() - start < std::chrono::seconds(2));
    transport.notice(std::chrono::milliseconds(10));
  }
  CHECK(transport.data_ended(1));
}

}  // namespace
}  // namespace hvd::testing
