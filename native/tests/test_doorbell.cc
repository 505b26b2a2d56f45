#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <array>
#include <thread>

#include "base/fd.h"
#include "testing/check.h"
#include "transport/doorbell.h"

namespace hvd {
namespace {

using testing::kSanitized;

constexpr int kPatienceMs = 20'000;

struct Sleeper {
  DoorbellWords words;
  Fd event_fd{eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  Doorbell bell{&words, event_fd.get()};
  std::atomic<bool> owes{false};
  Doorbell peers_bell{&words, event_fd.get(), nullptr, -1, &owes};
};

// As a peer that then stops looking for answers.
void ring_as_peer(Sleeper& sleeper) {
  sleeper.peers_bell.ring();
  if (sleeper.owes.exchange(false)) sleeper.peers_bell.wake_away();
}

// Waits until the count differs from `seen`, asleep in one way or another; returns false on a timeout.
bool wait_for_change(const Sleeper& sleeper, Sleep how, uint32_t seen) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(kPatienceMs);
  while (sleeper.bell.events() == seen) {
    if (std::chrono::steady_clock::now() > until) return false;
    if (how == Sleep::kFutex) {
      sleeper.bell.wait_futex(seen, std::chrono::milliseconds(kPatienceMs));
    } else if (how != Sleep::kAwake && sleeper.bell.arm(how, seen)) {
      pollfd query{sleeper.event_fd.get(), POLLIN, 0};
      if (poll(&query, 1, kPatienceMs) <= 0) return false;
      uint64_t count = 0;
      if (read(sleeper.event_fd.get(), &count, sizeof(count)) < 0) return false;
    } else {
      std::this_thread::yield();
    }
  }
  sleeper.bell.disarm();
  return true;
}

// How a side sleeps in a round: each way in turn, at another rhythm on each side, so that all pairs come up.
Sleep choose(uint32_t round, uint32_t period) {
  return std::array<Sleep, 4>{Sleep::kAwake, Sleep::kEventFd, Sleep::kFutex, Sleep::kAway}[round / period % 4];
}

TEST("doorbell: ping-pong without a lost wake-up, in all ways to sleep") {
  const uint32_t rounds = kSanitized ? 5'000 : 20'000;
  Sleeper ping;
  Sleeper pong;
  std::atomic<bool> lost{false};
  std::thread other([&] {
    for (uint32_t round = 0; round < rounds && !lost; ++round) {
      if (!wait_for_change(pong, choose(round, 7), round)) lost = true;
      ring_as_peer(ping);
    }
  });
  for (uint32_t round = 0; round < rounds && !lost; ++round) {
    ring_as_peer(pong);
    if (!wait_for_change(ping, choose(round, 2), round)) lost = true;
  }
  other.join();
  CHECK(!lost);
}

TEST("doorbell: who arms too late does not sleep") {
  Sleeper sleeper;
  const uint32_t seen = sleeper.bell.events();
  sleeper.bell.ring();
  CHECK(!sleeper.bell.arm(Sleep::kEventFd, seen));
  CHECK(!sleeper.bell.arm(Sleep::kFutex, seen));
  sleeper.bell.wait_futex(seen, std::nullopt);  // returns at once
}

TEST("doorbell: a note is seen, but wakes nobody") {
  Sleeper sleeper;
  const uint32_t seen = sleeper.bell.events();
  REQUIRE(sleeper.bell.arm(Sleep::kEventFd, seen));
  sleeper.bell.note();
  pollfd query{sleeper.event_fd.get(), POLLIN, 0};
  CHECK_EQ(poll(&query, 1, 0), 0);
  CHECK(sleeper.bell.events() != seen);
  sleeper.bell.ring();
  CHECK_EQ(poll(&query, 1, 0), 1);
}

TEST("doorbell: a peer wakes a rank that is away only if the rank does not come by itself") {
  Sleeper sleeper;
  pollfd query{sleeper.event_fd.get(), POLLIN, 0};
  const uint32_t seen = sleeper.bell.events();
  REQUIRE(sleeper.bell.arm(Sleep::kAway, seen));
  CHECK(sleeper.peers_bell.ring() && sleeper.owes);
  CHECK(sleeper.bell.events() != seen);
  CHECK_EQ(poll(&query, 1, 0), 0);
  sleeper.bell.disarm();  // it comes
  sleeper.peers_bell.wake_away();
  CHECK_EQ(poll(&query, 1, 0), 0);

  REQUIRE(sleeper.bell.arm(Sleep::kAway, sleeper.bell.events()));
  sleeper.peers_bell.wake_away();
  CHECK_EQ(poll(&query, 1, 0), 1);
}

TEST("doorbell: what rings in the rank itself wakes it though it is away") {
  Sleeper sleeper;
  REQUIRE(sleeper.bell.arm(Sleep::kAway, sleeper.bell.events()));
  CHECK(sleeper.bell.ring());
  pollfd query{sleeper.event_fd.get(), POLLIN, 0};
  CHECK_EQ(poll(&query, 1, 0), 1);
}

TEST("doorbell: a sleeper is woken once") {
  Sleeper sleeper;
  REQUIRE(sleeper.bell.arm(Sleep::kEventFd, sleeper.bell.events()));
  sleeper.bell.ring();
  sleeper.bell.ring();
  uint64_t count = 0;
  REQUIRE(read(sleeper.event_fd.get(), &count, sizeof(count)) == sizeof(count));
  CHECK_EQ(count, 1U);
}

// A file of the user's that has got the number of a descriptor.
Fd file_at(int number) {
  Fd file(memfd_create("users", MFD_CLOEXEC));
  if (file.get() == number) return file;
  REQUIRE(file.valid() && dup2(file.get(), number) == number);
  return Fd(number);
}

off_t length_of(const Fd& file) {
  struct stat status = {};
  REQUIRE(fstat(file.get(), &status) == 0);
  return status.st_size;
}

TEST("doorbell: who cannot wake a sleeper says so, and leaves that to others") {
  Sleeper sleeper;
  std::atomic<bool> broken{false};
  const int copy = dup(sleeper.event_fd.get());
  REQUIRE(copy >= 0);
  const Doorbell theirs(&sleeper.words, copy, &broken);
  CHECK(theirs.ring() && !broken);  // nobody sleeps
  REQUIRE(sleeper.bell.arm(Sleep::kEventFd, sleeper.bell.events()));
  close(copy);  // somebody closes what is not his own
  CHECK(!theirs.ring());
  CHECK(broken);

  const Fd users = file_at(copy);
  CHECK(!theirs.ring());
  CHECK_EQ(length_of(users), 0);  // nothing was written

  CHECK(sleeper.bell.ring());  // the sleeper can still be woken
  pollfd query{sleeper.event_fd.get(), POLLIN, 0};
  CHECK_EQ(poll(&query, 1, kPatienceMs), 1);
}

TEST("doorbell: a counter that is full wakes as well") {
  Sleeper sleeper;
  const uint64_t most = UINT64_MAX - 1;
  REQUIRE(write(sleeper.event_fd.get(), &most, sizeof(most)) == sizeof(most));
  REQUIRE(sleeper.bell.arm(Sleep::kEventFd, sleeper.bell.events()));
  CHECK(sleeper.bell.ring());
}

TEST("doorbell: a ring that is not urgent comes by a timer, and only to who sleeps in epoll") {
  const Fd timer(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  DoorbellWords words;
  const Doorbell bell(&words, -1, nullptr, timer.get());
  const Duration time = std::chrono::microseconds(100);
  CHECK(!bell.ring_in(time));
  CHECK(bell.arm(Sleep::kFutex, 0));
  CHECK(!bell.ring_in(time));
  for (const Sleep how : {Sleep::kEventFd, Sleep::kAway}) {
    const uint32_t seen = bell.events();
    CHECK(bell.arm(how, seen));
    CHECK(bell.ring_in(time));
    CHECK_EQ(bell.events(), seen + 1);  // who is about to sleep does not
  }
  pollfd query{timer.get(), POLLIN, 0};
  CHECK_EQ(poll(&query, 1, kPatienceMs), 1);
  // Without a timer, as where the program has closed it, the caller rings.
  const Doorbell broken(&words, -1, nullptr, -1);
  CHECK(!broken.ring_in(time));
}

}  // namespace
}  // namespace hvd
