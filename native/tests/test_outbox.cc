// What a rank sends to several ranks of its host at once.
#include <cstring>
#include <random>

#include "backend/native/native_backend.h"
#include "base/error.h"
#include "testing/check.h"
#include "testing/world.h"
#include "transport/outbox.h"

namespace hvd {
namespace {

constexpr LinkKind kRing = LinkKind::kData;
constexpr uint64_t kReference = kLine;  // what a frame takes of a ring if its payload lies elsewhere

// Rank 0 of a host of three, its links to the others, and their links to it.
struct Three {
  std::shared_ptr<Segment> segments[3] = {Segment::create_private(3), Segment::create_private(3),
                                          Segment::create_private(3)};
  Doorbell bells[3] = {Doorbell(segments[0]->doorbell(), -1), Doorbell(segments[1]->doorbell(), -1),
                       Doorbell(segments[2]->doorbell(), -1)};
  RingLink to[2] = {{segments[1]->ring(0, kRing), segments[0]->ring(1, kRing), bells[1]},
                    {segments[2]->ring(0, kRing), segments[0]->ring(2, kRing), bells[2]}};
  RingLink from[2] = {{segments[0]->ring(1, kRing), segments[1]->ring(0, kRing), bells[0], segments[0]->outbox()},
                      {segments[0]->ring(2, kRing), segments[2]->ring(0, kRing), bells[0], segments[0]->outbox()}};
  Outbox outbox{segments[0]->outbox()};

  bool send(uint32_t sequence, size_t bytes) {
    RingLink* const links[] = {&to[0], &to[1]};
    std::byte* room = outbox.try_reserve(bytes);
    if (room == nullptr) return false;
    for (RingLink* link : links) {
      if (link->try_reserve(0) == nullptr) return false;
    }
    for (size_t i = 0; i < bytes; ++i) room[i] = static_cast<std::byte>(sequence * 31 + i);
    outbox.commit({{0, sequence, 0}, static_cast<uint32_t>(bytes)}, links);
    return true;
  }

  // Takes the oldest frame of a receiver; whether there was one, and it was this one and intact.
  bool take(int receiver, uint32_t sequence) {
    RingLink& link = from[receiver];
    link.poll();
    Frame* frame = link.front();
    if (frame == nullptr || frame->header.key.sequence != sequence) return false;
    for (size_t i = 0; i < frame->header.bytes; ++i) {
      if (frame->payload[i] != static_cast<std::byte>(sequence * 31 + i)) return false;
    }
    link.consume(*frame);
    return true;
  }
};

}  // namespace

TEST("outbox: payloads reach all receivers intact, however far these lag behind each other") {
  Three ranks;
  std::mt19937 random(5);
  uint32_t sent = 0;
  uint32_t taken[2] = {0, 0};
  const uint32_t total = testing::kSanitized ? 300 : 3000;
  while (taken[0] < total || taken[1] < total) {
    while (sent < total && random() % 4 != 0) {
      if (!ranks.send(sent, random() % 8 == 0 ? random() % (256 << 10) : random() % 300)) break;
      ++sent;
    }
    for (const int receiver : {0, 1}) {
      for (uint32_t i = random() % 8; i > 0 && taken[receiver] < sent; --i) {
        REQUIRE(ranks.take(receiver, taken[receiver]));
        ++taken[receiver];
      }
    }
  }
}

TEST("outbox: a payload makes room when all receivers have used it, or have set it aside") {
  Three ranks;
  const size_t bytes = 200 << 10;
  uint32_t sent = 0;
  while (ranks.send(sent, bytes)) ++sent;
  CHECK_EQ(sent, 5U);  // 1 MiB
  CHECK(ranks.take(0, 0));
  CHECK(!ranks.send(sent, bytes));
  // Who is asked for room in its ring moves frames out of the way, also those that lie in the outbox.
  while (ranks.to[1].try_reserve(1000) != nullptr) ranks.to[1].commit({{0, 99, 0}, 1000});
  ranks.from[1].poll();
  CHECK(ranks.from[1].set_aside());
  CHECK(ranks.send(sent, bytes));
  for (uint32_t next = 0; next < sent; ++next) CHECK(ranks.take(1, next));
  for (uint32_t next = 1; next <= sent; ++next) CHECK(ranks.take(0, next));
}

TEST("outbox: there is no room for what is longer than half of it, nor where a host has fewer than three ranks") {
  Three ranks;
  CHECK(ranks.outbox.try_reserve(513 << 10) == nullptr);
  CHECK(ranks.outbox.try_reserve(512 << 10) != nullptr);
  Outbox none(Segment::create_private(2)->outbox());
  CHECK(none.try_reserve(1) == nullptr);
  CHECK(none.try_reserve(0) == nullptr);
}

TEST("outbox: a payload that does not lie in it is an error") {
  for (const uint64_t offset : {uint64_t{1 << 20}, uint64_t{(1 << 20) - 99}, ~uint64_t{0}, ~uint64_t{0} - 50}) {
    Three ranks;
    REQUIRE(ranks.to[0].try_reserve(0) != nullptr);
    ranks.to[0].commit_reference({{0, 0, 0}, 100}, offset);
    try {
      ranks.from[0].poll();
      CHECK(false);
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::kInternal);
    }
  }
}

// The ranks of a host, without engines: only rank 0 does anything.
TEST("outbox: what a plan sends to several ranks is written once, and to each while there is no room") {
  std::vector<TransportParts> parts = make_memory_transports(3);
  const std::shared_ptr<Segment> first = parts[1].segment;
  const std::shared_ptr<Segment> second = parts[2].segment;
  const std::shared_ptr<Segment> outbox = parts[0].segment;
  Transport transport(std::move(parts[0]));
  NativeBackend backend(transport, false, {});
  std::vector<float> values(375'000, 2.5F);  // 1.5 MB
  const auto broadcast = [&](uint32_t sequence, int64_t count) {
    Batch batch;
    batch.sequence = sequence;
    batch.members = {0, 1, 2};
    batch.dtype = DType::kFloat32;
    batch.inputs = batch.outputs = {{reinterpret_cast<std::byte*>(values.data()), count}};
    return backend.execute(Collective::kBroadcast, std::move(batch));
  };
  const auto execution = broadcast(0, 1000);
  CHECK(execution->advance());
  CHECK(execution->done());
  for (const auto& segment : {first, second}) CHECK_EQ(segment->ring(0, kRing).words->written.load(), kReference);
  CHECK(std::memcmp(outbox->outbox().data(), values.data(), 4000) == 0);

  const auto longer = broadcast(1, 375'000);
  while (longer->advance()) {
  }
  CHECK(longer->done());
  for (const auto& segment : {first, second}) {
    const uint64_t written = segment->ring(0, kRing).words->written.load();
    CHECK(written > 300'000 && written < 700'000);
  }
}

}  // namespace hvd
