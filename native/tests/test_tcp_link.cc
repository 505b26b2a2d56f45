#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <random>

#include "base/error.h"
#include "testing/check.h"
#include "transport/tcp_link.h"

namespace hvd {
namespace {

using testing::kSanitized;

std::array<Fd, 2> make_pair(int buffer_bytes = 0) {
  std::array<int, 2> fds{};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds.data()) != 0) throw_errno("socketpair");
  for (const int fd : fds) {
    if (buffer_bytes > 0) setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &buffer_bytes, sizeof(buffer_bytes));
  }
  return {Fd(fds[0]), Fd(fds[1])};
}

std::byte pattern(uint32_t sequence, size_t index) { return static_cast<std::byte>(sequence * 31 + index); }

bool send_frame(Link& link, uint32_t sequence, size_t bytes) {
  std::byte* room = link.try_reserve(bytes);
  if (room == nullptr) return false;
  for (size_t i = 0; i < bytes; ++i) room[i] = pattern(sequence, i);
  link.commit({{0, sequence, 0}, static_cast<uint32_t>(bytes)});
  return true;
}

bool intact(const Frame& frame) {
  for (size_t i = 0; i < frame.header.bytes; ++i) {
    if (frame.payload[i] != pattern(frame.header.key.sequence, i)) return false;
  }
  return true;
}

// A frame as it looks on the wire.
std::vector<std::byte> frame_bytes(uint32_t sequence, size_t bytes) {
  std::vector<std::byte> all(sizeof(FrameHeader) + bytes);
  const FrameHeader header{{0, sequence, 0}, static_cast<uint32_t>(bytes)};
  std::memcpy(all.data(), &header, sizeof(header));
  for (size_t i = 0; i < bytes; ++i) all[sizeof(header) + i] = pattern(sequence, i);
  return all;
}

void write_all(const Fd& fd, const std::vector<std::byte>& bytes, size_t count) {
  REQUIRE(send(fd.get(), bytes.data(), count, MSG_NOSIGNAL) == static_cast<ssize_t>(count));
}

TEST("tcp link: frames arrive in order and intact through tiny socket buffers") {
  auto [left, right] = make_pair(2048);
  TcpLink a(std::move(left));
  TcpLink b(std::move(right));
  std::mt19937 random(5);
  uint32_t sent = 0;
  uint32_t received = 0;
  const uint32_t total = kSanitized ? 300 : 3000;
  while (received < total) {
    const size_t most = random() % 16 == 0 ? a.max_frame_bytes() : 700;
    if (sent < total && send_frame(a, sent, random() % (most + 1))) ++sent;
    a.flush();
    b.poll();
    while (Frame* frame = b.front()) {
      REQUIRE(frame->header.key.sequence == received);
      REQUIRE(intact(*frame));
      b.consume(*frame);
      ++received;
    }
  }
  CHECK(a.flush());
  CHECK(!a.wants_to_write());
  CHECK(!b.ended());
}

TEST("tcp link: a frame may arrive byte by byte") {
  auto [left, right] = make_pair();
  TcpLink link(std::move(right));
  for (uint32_t sequence = 0; sequence < 6; ++sequence) {
    const size_t bytes = std::array<size_t, 6>{0, 1, 15, 16, 17, 200}[sequence];
    const std::vector<std::byte> all = frame_bytes(sequence, bytes);
    for (const std::byte byte : all) {
      CHECK(!link.poll());
      write_all(left, {byte}, 1);
    }
    CHECK(link.poll());
    Frame* frame = link.front();
    REQUIRE(frame != nullptr);
    CHECK_EQ(frame->header.key.sequence, sequence);
    CHECK_EQ(frame->header.bytes, bytes);
    CHECK(intact(*frame));
    link.consume(*frame);
  }
}

TEST("tcp link: many frames in one piece") {
  auto [left, right] = make_pair();
  TcpLink link(std::move(right));
  std::vector<std::byte> all;
  for (uint32_t sequence = 0; sequence < 50; ++sequence) {
    const std::vector<std::byte> one = frame_bytes(sequence, sequence * 3 % 50);
    all.insert(all.end(), one.begin(), one.end());
  }
  write_all(left, all, all.size());
  CHECK(link.poll());
  for (uint32_t sequence = 50; sequence-- > 0;) {
    Frame* frame = link.find({0, sequence, 0});
    REQUIRE(frame != nullptr);
    CHECK(intact(*frame));
    link.consume(*frame);
  }
  CHECK(link.front() == nullptr);
}

TEST("tcp link: a header that cannot be is an error, and the last thing that is read") {
  auto [left, right] = make_pair();
  TcpLink link(std::move(right));
  std::vector<std::byte> header(sizeof(FrameHeader) + 100);
  const FrameHeader absurd{{0, 0, 0}, static_cast<uint32_t>(link.max_frame_bytes() + 1)};
  std::memcpy(header.data(), &absurd, sizeof(absurd));
  write_all(left, header, header.size());
  try {
    link.poll();
    CHECK(false);
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::kInternal);
  }
  CHECK(!link.poll());
  CHECK(link.front() == nullptr);
}

TEST("tcp link: a peer that closes in the middle of a frame") {
  const std::vector<std::byte> all = frame_bytes(1, 40);
  for (const size_t cut : {size_t{0}, size_t{1}, size_t{15}, size_t{16}, size_t{17}, all.size() - 1, all.size()}) {
    auto [left, right] = make_pair();
    TcpLink link(std::move(right));
    write_all(left, frame_bytes(0, 5), sizeof(FrameHeader) + 5);
    if (cut > 0) write_all(left, all, cut);
    left.reset();
    link.poll();
    CHECK(link.ended());
    REQUIRE(link.find({0, 0, 0}) != nullptr);
    CHECK_EQ(link.find({0, 1, 0}) != nullptr, cut == all.size());
    CHECK(!link.poll());
  }
}

TEST("tcp link: what cannot be sent any more is not waited for") {
  auto [left, right] = make_pair(2048);
  TcpLink link(std::move(left));
  CHECK(send_frame(link, 0, 100'000));
  CHECK(!send_frame(link, 1, 100'000));
  CHECK(!link.flush());
  CHECK(!link.delivered());
  right.reset();
  CHECK(link.flush());
  CHECK(!link.wants_to_write());
  CHECK(link.delivered());
  for (uint32_t sequence = 0; sequence < 40; ++sequence) CHECK(send_frame(link, sequence, 100'000));
  link.poll();
  CHECK(link.ended());
}

TEST("tcp link: a full buffer gives no room until the peer reads") {
  auto [left, right] = make_pair(2048);
  TcpLink a(std::move(left));
  TcpLink b(std::move(right));
  uint32_t sent = 0;
  while (send_frame(a, sent, 50'000)) ++sent;
  CHECK(sent >= 1);
  CHECK(a.wants_to_write());
  // Small ones are cheaper to keep than to wait for.
  while (send_frame(a, sent, 50)) ++sent;
  CHECK(sent > 100);
  uint32_t received = 0;
  while (received < sent) {
    a.flush();
    b.poll();
    while (Frame* frame = b.front()) {
      CHECK(intact(*frame));
      b.consume(*frame);
      ++received;
    }
  }
  CHECK(send_frame(a, sent, 50'000));
}

// Sends a frame from memory that is overwritten at once.
bool send_from_memory(TcpLink& link, uint32_t sequence, size_t bytes, size_t num_parts) {
  if (link.try_reserve(bytes) == nullptr) return false;
  std::vector<std::byte> memory(bytes);
  for (size_t i = 0; i < bytes; ++i) memory[i] = pattern(sequence, i);
  std::vector<std::span<const std::byte>> parts;
  const size_t part = bytes / num_parts;
  for (size_t i = 0; i < num_parts; ++i) {
    parts.emplace_back(memory.data() + i * part, i + 1 < num_parts ? part : bytes - i * part);
  }
  link.commit_from({{0, sequence, 0}, static_cast<uint32_t>(bytes)}, parts);
  std::fill(memory.begin(), memory.end(), std::byte{0xee});
  return true;
}

TEST("tcp link: frames from memory and from the link's room keep their order, however little the socket takes") {
  for (const int buffer_bytes : {2048, 100'000}) {
    auto [left, right] = make_pair(buffer_bytes);
    TcpLink a(std::move(left));
    TcpLink b(std::move(right));
    std::mt19937 random(7);
    uint32_t sent = 0;
    const uint32_t total = kSanitized ? 200 : 1000;
    for (uint32_t received = 0; received < total;) {
      const size_t bytes = random() % 3 == 0 ? random() % 200'000 : random() % 3000;
      const bool from_memory = random() % 3 != 0;
      if (sent < total &&
          (from_memory ? send_from_memory(a, sent, bytes, 1 + random() % 5) : send_frame(a, sent, bytes)))
        ++sent;
      if (random() % 2 == 0) a.flush();
      b.poll();
      while (Frame* frame = b.front()) {
        REQUIRE(frame->header.key.sequence == received);
        REQUIRE(intact(*frame));
        b.consume(*frame);
        ++received;
      }
    }
    CHECK(a.flush());
  }
}

TEST("tcp link: a frame comes to the place where it is expected, wherever its bytes are cut") {
  const std::vector<std::byte> all = frame_bytes(1, 9000);
  for (const size_t cut : {size_t{1}, size_t{16}, size_t{17}, size_t{4000}, size_t{5000}, all.size() - 1, all.size()}) {
    auto [left, right] = make_pair();
    TcpLink link(std::move(right));
    std::vector<std::byte> place(9000);
    std::vector<std::byte> wrong_length(8999);
    link.expect({0, 2, 0}, wrong_length);
    link.expect({0, 1, 0}, place);
    write_all(left, all, cut);
    link.poll();
    write_all(left, {all.begin() + static_cast<std::ptrdiff_t>(cut), all.end()}, all.size() - cut);
    write_all(left, frame_bytes(2, 9000), sizeof(FrameHeader) + 9000);
    link.poll();
    Frame* expected = link.find({0, 1, 0});
    Frame* other = link.find({0, 2, 0});
    REQUIRE(expected != nullptr);
    REQUIRE(other != nullptr);
    CHECK(expected->payload == place.data());
    CHECK(intact(*expected));
    CHECK(intact(*other));
    link.consume(*expected);
    link.consume(*other);
    CHECK(link.front() == nullptr);
  }
}

TEST("tcp link: nothing is written to a place that was withdrawn, and what lies there is forgotten") {
  const std::vector<std::byte> all = frame_bytes(1, 9000);
  for (const size_t cut : {size_t{0}, size_t{10}, size_t{16}, size_t{6000}, all.size()}) {
    auto [left, right] = make_pair();
    TcpLink link(std::move(right));
    auto place = std::make_unique<std::vector<std::byte>>(9000);
    link.expect({0, 1, 0}, *place);
    if (cut > 0) write_all(left, all, cut);
    link.poll();
    link.withdraw({0, 1, 0});
    place.reset();  // a sanitizer sees who still uses it
    if (cut < all.size())
      write_all(left, {all.begin() + static_cast<std::ptrdiff_t>(cut), all.end()}, all.size() - cut);
    write_all(left, frame_bytes(2, 300), sizeof(FrameHeader) + 300);
    link.poll();
    Frame* late = link.find({0, 1, 0});
    CHECK_EQ(late != nullptr, cut < all.size());
    if (late != nullptr) CHECK(intact(*late));
    Frame* next = link.find({0, 2, 0});
    REQUIRE(next != nullptr);
    CHECK(intact(*next));
  }
}

TEST("tcp link: blocks are used again, and few lie idle") {
  auto pool = std::make_shared<BlockPool>();
  auto [left, right] = make_pair();
  TcpLink a(std::move(left));
  TcpLink b(std::move(right), pool);
  const std::byte* first = nullptr;
  for (uint32_t sequence = 0; sequence < 20; ++sequence) {
    REQUIRE(send_frame(a, sequence, 60'000));
    b.poll();
    Frame* frame = b.front();
    REQUIRE(frame != nullptr);
    if (first == nullptr) first = frame->payload;
    CHECK(frame->payload == first);
    b.consume(*frame);
    CHECK_EQ(pool->idle_bytes(), size_t{64} << 10);
  }
  std::vector<BlockPool::Block> blocks;
  for (int i = 0; i < 100; ++i) blocks.push_back(pool->take(100'000));
  for (auto& block : blocks) pool->give_back(std::move(block), 100'000);
  CHECK(pool->idle_bytes() <= size_t{4} << 20);
}

// Frames that nobody uses must not fill the memory: the socket holds them back.
TEST("tcp link: a receiver takes in a few megabytes ahead, more only if it needs what lies behind") {
  auto [left, right] = make_pair();
  TcpLink a(std::move(left));
  TcpLink b(std::move(right));
  const auto pump = [&](uint32_t first) {
    uint32_t sent = first;
    for (int idle = 0; idle < 3;) {
      const bool more = send_frame(a, sent, 200'000);
      if (more) ++sent;
      idle = b.poll() || more ? 0 : idle + 1;
    }
    return sent;
  };
  const uint32_t first = pump(0);
  CHECK(first * 200'000 < 8 << 20);
  b.consume(*b.find({0, 3, 0}));  // out of order: frame 0 still waits
  const uint32_t second = pump(first);
  CHECK(second <= first + 1);
  REQUIRE(b.set_aside());
  const uint32_t third = pump(second);
  CHECK(third > second + 10);
  for (uint32_t sequence = 0; sequence < third; ++sequence) {
    a.flush();
    b.poll();
    if (sequence == 3) continue;
    Frame* frame = b.find({0, sequence, 0});
    REQUIRE(frame != nullptr);
    b.consume(*frame);
  }
}

}  // namespace
}  // namespace hvd
