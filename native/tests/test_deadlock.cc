// Ranks that wait for each other for ever end the job; ranks that only might do not.
#include <atomic>
#include <thread>

#include "engine/watch/deadlock.h"
#include "testing/array.h"
#include "testing/check.h"
#include "testing/log.h"
#include "testing/manual_clock.h"
#include "testing/world.h"

namespace hvd::testing {
namespace {

using Threads = std::vector<InterpreterThread>;

constexpr Duration kAge = std::chrono::seconds(60);

Stall stall(const std::string& name, std::vector<int> waiting, std::vector<int> missing, Duration age = kAge) {
  const size_t count = waiting.size();
  return {.name = name,
          .waiting = std::move(waiting),
          .call_sites = std::vector<std::string>(count),
          .missing = std::move(missing),
          .age = age};
}

PositionReport held_by(std::vector<Wait> waits) {
  PositionReport report;
  report.blocked = true;
  report.held = true;
  report.waits = std::move(waits);
  return report;
}

TEST("deadlock: all missing ranks are held by names that miss each other") {
  const std::vector<Stall> stalls = {stall("a", {0, 2}, {1}), stall("b", {1}, {0, 2})};
  const std::map<int, PositionReport> held = {
      {0, held_by({{0, "a"}})}, {1, held_by({{0, "b"}})}, {2, held_by({{0, "a"}})}};
  CHECK(is_deadlock(0, stalls, held, kAge));
  CHECK(!is_deadlock(0, stalls, held, kAge + std::chrono::seconds(1)));
  CHECK(!is_deadlock(0, {}, held, kAge));
  CHECK(!is_deadlock(1, stalls, held, kAge));  // they wait in another set

  auto changed = held;
  changed[2].held = false;  // it is busy, or elsewhere
  CHECK(!is_deadlock(0, stalls, changed, kAge));
  changed = held;
  changed.erase(2);  // it did not answer
  CHECK(!is_deadlock(0, stalls, changed, kAge));
  changed = held;
  changed[2].waits = {{0, "c"}};  // which is ready, or on its way
  CHECK(!is_deadlock(0, stalls, changed, kAge));
  changed[2].waits = {{0, "a"}, {3, "x"}};  // another thread goes on when another set does
  CHECK(!is_deadlock(0, stalls, changed, kAge));
  changed[2].waits = {};
  CHECK(!is_deadlock(0, stalls, changed, kAge));

  const std::vector<Stall> young = {stall("a", {0, 2}, {1}), stall("b", {1}, {0, 2}, kAge / 2)};
  CHECK(!is_deadlock(0, young, held, kAge));
}

TEST("deadlock: a rank is held if none of its threads can come with something else") {
  const std::set<uint64_t> waiting = {1};
  const std::set<uint64_t> submitters = {1, 2};
  CHECK(is_held(Threads{{.id = 1, .idle = false}}, waiting, submitters));
  CHECK(is_held(Threads{{.id = 1, .idle = false}, {.id = 7, .idle = true}}, waiting, submitters));
  CHECK(!is_held(Threads{{.id = 1, .idle = false}, {.id = 7, .idle = false}}, waiting, submitters));
  CHECK(!is_held(Threads{{.id = 1, .idle = false}, {.id = 2, .idle = true}}, waiting, submitters));
  CHECK(!is_held(std::nullopt, waiting, submitters));
  CHECK(!is_held(Threads{}, {}, submitters));
}

// Answers for each rank as an adapter's thread does.
class Watchers {
 public:
  Watchers(World& world, const std::function<Threads(int rank)>& threads) : world_(world) {
    for (int rank = 0; rank < world.size(); ++rank) {
      watchers_.emplace_back([this, rank, threads] {
        Position& position = world_.engine(rank).position();
        while (!ended_) {
          if (!position.wait_for_request(std::chrono::milliseconds(20))) continue;
          position.answer("train.py:7 in step", threads(rank));
          ++num_answers_;
        }
      });
    }
  }
  Watchers(const Watchers&) = delete;
  Watchers& operator=(const Watchers&) = delete;
  ~Watchers() {
    ended_ = true;
    for (std::thread& watcher : watchers_) watcher.join();
  }
  [[nodiscard]] int num_answers() const { return num_answers_; }

 private:
  World& world_;
  std::atomic<bool> ended_{false};
  std::atomic<int> num_answers_{0};
  std::vector<std::thread> watchers_;
};

struct CrossedRanks {
  Log log;
  std::shared_ptr<ManualClock> clock = std::make_shared<ManualClock>();

  EngineOptions options() {
    EngineOptions options;
    options.log = log.sink();
    options.clock = clock;
    options.deadlock_timeout = kAge;
    return options;
  }

  std::shared_ptr<Operation> submit(World& world, int rank, bool first) {
    const std::string name = (rank == 1) == first ? "b" : "a";
    auto operation = make_operation(OpKind::kBarrier, name, {}, {});
    operation->request.call_site = "train.py:" + std::to_string(10 + rank);
    submit_to(world.engine(rank), operation, first);
    return operation;
  }

  // Lets the clock go on until `ended` says so, or for many times as long as a deadlock may last.
  void advance_until(const std::function<bool()>& ended) {
    const Operation nobodys;
    for (int i = 0; i < 200 && !ended(); ++i) {
      clock->advance(std::chrono::seconds(5));
      static_cast<void>(
          nobodys.wait_done(std::chrono::milliseconds(50)));  // a rank measures for 100 ms whether it is busy
    }
  }
};

TEST("deadlock: ranks that wait for each other end after the time, and tell who waits where") {
  for (const Wire wire : {Wire::kMemory, Wire::kSockets}) {
    CrossedRanks crossed;
    World world(3, crossed.options(), wire);
    const Watchers watchers(world, [](int) { return Threads{}; });
    std::atomic<int> num_ended{0};
    std::thread time([&] { crossed.advance_until([&] { return num_ended == 3; }); });
    const TimePoint started = crossed.clock->now();
    world.run([&](int rank) {
      auto operation = crossed.submit(world, rank, true);
      const Waiting waiting(*operation);
      const TimePoint until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
      while (!world.engine(rank).wait(*operation, std::chrono::milliseconds(200)) &&
             std::chrono::steady_clock::now() < until) {
      }
      ++num_ended;
      REQUIRE(operation->done() && operation->error().has_value());
      CHECK(operation->error()->kind() == ErrorKind::kStalled);
      const std::string text = operation->error()->what();
      CHECK(contains(text, "Ranks wait for each other"));
      CHECK(contains(text, "HOROVOD_DEADLOCK_TIMEOUT"));
      CHECK(contains(text, "60 s"));
      CHECK(contains(text, "a: submitted by rank 0 at train.py:10; rank 2 at train.py:12"));
      CHECK(contains(text, "rank 1: [a]"));
      CHECK(contains(text, "It waits for b at train.py:11"));
    });
    CHECK(crossed.clock->now() - started >= kAge);
    time.join();
  }
}

TEST("deadlock: a rank with another thread is asked again and again, and the job goes on") {
  CrossedRanks crossed;
  World world(3, crossed.options());
  // Rank 2 computes in a thread that may yet come with what the others miss.
  const Watchers watchers(world, [](int rank) { return rank == 2 ? Threads{{.id = 1, .idle = false}} : Threads{}; });
  std::atomic<bool> asked{false};
  std::thread time([&] {
    crossed.advance_until([&] { return watchers.num_answers() >= 12 || world.engine(0).error().has_value(); });
    asked = true;
  });
  world.run([&](int rank) {
    auto operation = crossed.submit(world, rank, true);
    {
      const Waiting waiting(*operation);
      while (!asked && !world.engine(rank).wait(*operation, std::chrono::milliseconds(20))) {
      }
    }
    auto other = crossed.submit(world, rank, false);
    CHECK(world.engine(rank).wait(*operation, std::chrono::seconds(20)));
    CHECK(world.engine(rank).wait(*other, std::chrono::seconds(20)));
    CHECK(!operation->error().has_value());
  });
  time.join();
  CHECK(watchers.num_answers() >= 12);
}

}  // namespace
}  // namespace hvd::testing
