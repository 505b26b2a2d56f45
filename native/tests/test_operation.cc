// An operation by itself: who hears of its end.
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "engine/submission/operation.h"
#include "testing/check.h"

namespace hvd {
namespace {

using std::chrono::seconds;

// A test whose wake-up is lost goes on, and fails, after this time.
constexpr seconds kForever(20);

TEST("operation: its end wakes all threads that sleep for it") {
  const auto began = std::chrono::steady_clock::now();
  for (int round = 0; round < 200; ++round) {
    Operation operation;
    std::atomic<int> num_awake{0};
    std::vector<std::thread> sleepers;
    for (int i = 0; i < 3; ++i) sleepers.emplace_back([&] { num_awake += operation.wait_done(kForever) ? 1 : 0; });
    operation.complete();
    for (std::thread& sleeper : sleepers) sleeper.join();
    REQUIRE(num_awake == 3);
    REQUIRE(std::chrono::steady_clock::now() - began < kForever);
  }
}

TEST("operation: its end wakes a thread that comes after another one has given up") {
  Operation operation;
  CHECK(!operation.wait_done(std::chrono::milliseconds(1)));
  CHECK(!operation.done());
  const auto began = std::chrono::steady_clock::now();
  std::thread sleeper([&] { CHECK(operation.wait_done(kForever)); });
  operation.complete();
  sleeper.join();
  CHECK(std::chrono::steady_clock::now() - began < kForever);
  CHECK(operation.done());
}

}  // namespace
}  // namespace hvd
