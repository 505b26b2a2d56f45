// An engine leaves nothing behind, and does nothing while there is nothing to do.
#include <ctime>
#include <filesystem>
#include <fstream>
#include <thread>

#include "engine/engine.h"
#include "testing/array.h"
#include "testing/check.h"
#include "testing/world.h"

namespace hvd::testing {
namespace {

int64_t count_entries(const char* folder) {
  int64_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder)) ++count;
  return count;
}

int64_t mapped_kilobytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t pages = 0;
  statm >> pages;
  return pages * 4;
}

void sum_once(World& world) {
  world.run([&](int rank) {
    for (const int64_t count : {int64_t{4}, int64_t{9000}}) {
      Array array = samples(DType::kFloat32, ReduceOp::kSum, rank, {count});
      run_operation(world.engine(rank), make_allreduce("x", {array.view()}, {array.view()}));
      CHECK_EQ(array.get(2), reduced(DType::kFloat32, ReduceOp::kSum, world.size(), 2));
    }
  });
}

void live(Wire wire, int round) {
  World world(3, {}, wire);
  if (round % 3 != 0) sum_once(world);
  if (round % 2 == 0) {
    for (int rank = 0; rank < 3; ++rank) world.engine(rank).close("the round ends");
    world.engine(0).close("again");
  }
}

TEST("life: hundreds of engines leave no descriptor, thread or memory behind") {
  for (const Wire wire : {Wire::kMemory, Wire::kSockets}) {
    const int rounds = kSanitized ? 30 : 200;
    for (int round = 0; round < 20; ++round) live(wire, round);
    const int64_t descriptors = count_entries("/proc/self/fd");
    const int64_t threads = count_entries("/proc/self/task");
    const int64_t kilobytes = mapped_kilobytes();
    for (int round = 0; round < rounds; ++round) live(wire, round);
    CHECK_EQ(count_entries("/proc/self/fd"), descriptors);
    // A thread that was joined may stay in the list for a moment.
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(2);
    while (count_entries("/proc/self/task") > threads && std::chrono::steady_clock::now() < until) {
      std::this_thread::yield();
    }
    CHECK(count_entries("/proc/self/task") <= threads);
    // 200 worlds that are not unmapped would be over 1 GB; allocators may take new arenas.
    if (!kSanitized) CHECK(mapped_kilobytes() - kilobytes < 300 << 10);
  }
}

double process_cpu_ms() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e3 + static_cast<double>(time.tv_nsec) / 1e6;
}

TEST("life: idle engines use no processor") {
  for (const Wire wire : {Wire::kMemory, Wire::kSockets}) {
    World world(4, {}, wire);
    sum_once(world);
    std::this_thread::sleep_for(std::chrono::milliseconds(700));  // until spinning, and the last stall check, are over
    uint64_t passes = 0;
    for (int rank = 0; rank < 4; ++rank) passes += world.engine(rank).statistics().passes;
    const double before = process_cpu_ms();
    std::this_thread::sleep_for(std::chrono::seconds(1));
    CHECK(process_cpu_ms() - before < 5.0);
    for (int rank = 0; rank < 4; ++rank) passes -= world.engine(rank).statistics().passes;
    CHECK_EQ(passes, 0U);
  }
}

TEST("life: an engine that has been closed says so") {
  World world(1);
  Engine& engine = world.engine(0);
  Array array(DType::kFloat32, {3});
  engine.close("first");
  engine.close("second");
  REQUIRE(engine.error().has_value());
  CHECK(std::string(engine.error()->what()).find("first") != std::string::npos);
  try {
    submit_to(engine, make_allreduce("x", {array.view()}, {array.view()}), true);
    CHECK(false);
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::kShutDown);
  }
}

TEST("life: many threads may close one engine") {
  for (int round = 0; round < 20; ++round) {
    World world(2);
    sum_once(world);
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) threads.emplace_back([&, i] { world.engine(i % 2).close("all at once"); });
    for (std::thread& thread : threads) thread.join();
  }
}

}  // namespace
}  // namespace hvd::testing
