// Ranks that wait for each other for ever end the job; ranks that only might do not.
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <mutex>
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

Unready unready(const std::string& name, std::vector<int32_t> waiting, std::vector<int32_t> missing,
                Duration age = kAge, uint32_t set = 0) {
  return {.wait = {.set = set, .name = name}, .age = age, .waiting = std::move(waiting), .missing = std::move(missing)};
}

PositionReport held_by(std::vector<Wait> waits) {
  PositionReport report;
  report.blocked = true;
  report.held = true;
  report.waits = std::move(waits);
  return report;
}

Evidence evidence(const std::vector<Unready>& names, const std::map<int, PositionReport>& positions) {
  Evidence found;
  for (const Unready& each : names) found.unready[each.wait] = each;
  found.positions = positions;
  return found;
}

TEST("deadlock: all missing ranks are held by names that miss each other") {
  const std::vector<Unready> names = {unready("a", {0, 2}, {1}), unready("b", {1}, {0, 2})};
  const std::map<int, PositionReport> held = {
      {0, held_by({{0, "a"}})}, {1, held_by({{0, "b"}})}, {2, held_by({{0, "a"}})}};
  CHECK(is_deadlock(evidence(names, held), kAge));
  CHECK(!is_deadlock(evidence(names, held), kAge + std::chrono::seconds(1)));
  CHECK(!is_deadlock(evidence({}, held), kAge));

  auto changed = held;
  changed[2].held = false;  // it is busy, or elsewhere
  CHECK(!open_questions(evidence(names, changed)).has_value());
  CHECK(!is_deadlock(evidence(names, changed), kAge));
  changed = held;
  changed.erase(2);  // it did not answer
  CHECK(!is_deadlock(evidence(names, changed), kAge));
  changed = held;
  changed[2].waits = {{0, "c"}};  // which is ready, or on its way
  CHECK(!is_deadlock(evidence(names, changed), kAge));
  changed[2].waits = {{0, "a"}, {3, "x"}};  // another thread goes on when another set does
  CHECK(!is_deadlock(evidence(names, changed), kAge));
  changed[2].waits = {};
  CHECK(!is_deadlock(evidence(names, changed), kAge));

  const std::vector<Unready> young = {unready("a", {0, 2}, {1}), unready("b", {1}, {0, 2}, kAge / 2)};
  CHECK(!is_deadlock(evidence(young, held), kAge));
}

TEST("deadlock: what ranks wait for is followed through process sets") {
  // Rank 0 has joined and waits for 1, which waits in set 1 for 2, which waits in set 2 for 0.
  const std::vector<Unready> names = {unready("join", {0}, {1}), unready("x", {1}, {2}, kAge, 1),
                                      unready("y", {2}, {0}, kAge, 2)};
  const std::map<int, PositionReport> held = {
      {0, held_by({{0, "join"}})}, {1, held_by({{1, "x"}})}, {2, held_by({{2, "y"}})}};
  CHECK(is_deadlock(evidence(names, held), kAge));

  auto open = open_questions(evidence({names[0]}, {}));
  REQUIRE(open.has_value());
  CHECK(open->ranks == std::set<int>({1}) && open->waits.empty());
  open = open_questions(evidence({names[0]}, {{1, held.at(1)}}));
  REQUIRE(open.has_value());
  CHECK(open->ranks.empty() && open->waits == std::set<Wait>({{.set = 1, .name = "x"}}));
  open = open_questions(evidence({names[0], names[1]}, {{1, held.at(1)}}));
  REQUIRE(open.has_value());
  CHECK(open->ranks == std::set<int>({2}) && open->waits.empty());

  auto ready = names;
  ready[2].missing.clear();  // its coordinator says that it waits for nobody
  CHECK(!open_questions(evidence(ready, held)).has_value());
  auto busy = held;
  busy[2].held = false;
  CHECK(!is_deadlock(evidence(names, busy), kAge));
}

ThreadSleeps no_look() {
  report(__FILE__, __LINE__, "the threads were looked at though they do not matter");
  return {};
}

TEST("deadlock: a rank is held if none of its threads can come with something else") {
  const Callers callers{.waiting = {1}, .submitters = {1, 2}};
  const auto held = [&](const std::optional<Threads>& threads) { return is_held(threads, callers, &no_look, {}); };
  CHECK(held(Threads{{.id = 1, .idle = false}}));
  CHECK(held(Threads{{.id = 1, .idle = false}, {.id = 7, .idle = true}}));
  CHECK(!held(std::nullopt));
  CHECK(!is_held(Threads{}, {}, &no_look, {}));
  const auto nobody = [] { return ThreadSleeps(); };
  CHECK(!is_held(Threads{{.id = 1, .idle = false}, {.id = 7, .idle = false}}, callers, nobody, {}));
  CHECK(!is_held(Threads{{.id = 1, .idle = false}, {.id = 2, .idle = true}}, callers, nobody, {}));
}

TEST("deadlock: a program that waits in a framework is held if none of the process's threads goes on") {
  using enum ThreadSleep;
  const Callers kernels{.waiting = {}, .submitters = {9}, .kernels = true};
  const Threads main = {{.id = 1, .idle = false, .native = 101}};
  const auto held = [&](const ThreadSleeps& sleeps) { return is_held(main, kernels, [&] { return sleeps; }, {100}); };
  // The main thread waits for a pool, whose threads wait for work; the engine's own thread does not count.
  CHECK(held({{100, kNot}, {101, kForOthers}, {102, kForOthers}, {103, kForEvents}}));
  CHECK(!held({{100, kNot}, {101, kForEvents}, {102, kForOthers}}));  // it may go on by itself
  const Threads inside = {{.id = 1, .native = 101, .in_framework = true}};
  CHECK(is_held(inside, kernels, [] { return ThreadSleeps{{101, kForEvents}}; }, {}));  // it looks for signals
  CHECK(!is_held(inside, kernels, [] { return ThreadSleeps{{101, kNot}}; }, {}));
  CHECK(!held({{100, kNot}, {101, kForOthers}, {102, kNot}}));  // one computes, or reads
  CHECK(!held({{102, kForOthers}}));                            // the main thread cannot be looked at
  // Without kernels likewise, if a thread waits for one that waits for an operation.
  const Callers one{.waiting = {2}, .submitters = {1, 2}};
  const Threads both = {{.id = 1, .idle = false, .native = 101}, {.id = 2, .idle = false, .native = 102}};
  CHECK(is_held(both, one, [] { return ThreadSleeps{{101, kForOthers}, {102, kNot}}; }, {}));
  CHECK(!is_held(both, one, [] { return ThreadSleeps{{101, kForOthers}, {102, kNot}, {103, kNot}}; }, {}));
  CHECK(!is_held(both, one, [] { return ThreadSleeps{{101, kForEvents}, {102, kNot}}; }, {}));
}

TEST("deadlock: a thread that feeds a sleeping one may make it go on") {
  using enum ThreadSleep;
  // The main thread has submitted before, and sleeps until 2 has read from a worker process; 3 waits for an operation.
  const Callers callers{.waiting = {3}, .submitters = {1, 3}};
  const auto held = [&](bool in_framework, ThreadSleep feeder) {
    const Threads threads = {{.id = 1, .idle = true, .native = 101},
                             {.id = 2, .idle = true, .native = 102, .in_framework = in_framework},
                             {.id = 3, .native = 103}};
    return is_held(threads, callers, [&] { return ThreadSleeps{{101, kForOthers}, {102, feeder}, {103, kNot}}; }, {});
  };
  CHECK(!held(false, kNot));
  CHECK(held(false, kForOthers));  // nobody feeds it
  CHECK(held(true, kNot));         // it is Horovod's own, or of what runs ranks, and feeds nobody
}

std::string system_call(long number, const std::string& arguments) { return std::to_string(number) + " " + arguments; }

TEST("threads: how one sleeps follows from its system call") {
  CHECK(sleep_of("running") == ThreadSleep::kNot);
  CHECK(sleep_of("") == ThreadSleep::kNot);
  CHECK(sleep_of(system_call(SYS_futex, "0x7fd41d0a1140 0x189 0x0 0x0 0x0 0xffffffff 0x1 0x2")) ==
        ThreadSleep::kForOthers);
  CHECK(sleep_of(system_call(SYS_futex, "0x7fd41d0a1140 0x80 0x0 0x0 0x0 0x0 0x1 0x2")) == ThreadSleep::kForOthers);
  CHECK(sleep_of(system_call(SYS_futex, "0x7fd41d0a1140 0x189 0x0 0x7ffc0 0x0 0xffffffff 0x1 0x2")) ==
        ThreadSleep::kForEvents);
  // Another process may wake it.
  CHECK(sleep_of(system_call(SYS_futex, "0x7fd41d0a1140 0x0 0x0 0x0 0x0 0x0 0x1 0x2")) == ThreadSleep::kForEvents);
  CHECK(sleep_of(system_call(SYS_futex, "0x7fd41d0a1140 0x81 0x0 0x0 0x0 0x0 0x1 0x2")) == ThreadSleep::kNot);
  CHECK(sleep_of(system_call(SYS_futex, "0x7fd41d0a1140")) == ThreadSleep::kNot);
  CHECK(sleep_of(system_call(SYS_read, "0x3 0x7fd41d0a1140 0x80 0x0 0x0 0x0 0x1 0x2")) == ThreadSleep::kNot);
  CHECK(sleep_of(system_call(SYS_epoll_pwait, "0x3 0x1 0x2 0x3 0x0 0x0 0x1 0x2")) == ThreadSleep::kForEvents);
  CHECK(sleep_of(system_call(SYS_clock_nanosleep, "0x0 0x0 0x2 0x3 0x0 0x0 0x1 0x2")) == ThreadSleep::kForEvents);
}

TEST("threads: those of this process are told apart") {
  std::mutex mutex;
  std::condition_variable changed;
  bool ended = false;
  std::atomic<pid_t> waiting{0};
  std::thread sleeper([&] {
    waiting = gettid();
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return ended; });
  });
  ThreadSleeps sleeps;
  const TimePoint until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  const auto is_seen = [&] {
    const auto found = sleeps.find(waiting);
    return found != sleeps.end() && found->second == ThreadSleep::kForOthers;
  };
  while (!is_seen() && std::chrono::steady_clock::now() < until) sleeps = sleeps_of_threads();
  CHECK(is_seen());
  CHECK(sleeps.at(gettid()) == ThreadSleep::kNot);
  {
    const std::lock_guard lock(mutex);
    ended = true;
  }
  changed.notify_one();
  sleeper.join();
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

// What a rank waits for, in a job with the process sets 1 (0, 1), 2 (1, 2) and 3 (0, 2).
struct Way {
  OpKind kind = OpKind::kBarrier;
  uint32_t set = 0;
  std::string name = {};
};

std::shared_ptr<Operation> go(Engine& engine, const Way& way) {
  const bool unnamed = way.kind == OpKind::kJoin || way.kind == OpKind::kBarrier;
  static std::vector<float> values(5000, 1.0F);
  const std::vector<Buffer> tensors = unnamed ? std::vector<Buffer>{} : std::vector<Buffer>{view(values)};
  auto operation = make_operation(way.kind, way.name, tensors, tensors);
  if (unnamed) operation->request.name.reset();
  operation->request.root = way.kind == OpKind::kBroadcast ? 0 : -1;
  operation->request.process_set = way.set;
  operation->request.call_site = "train.py:" + std::to_string(20 + engine.rank());
  submit_to(engine, operation, true);
  return operation;
}

void add_pairs(Engine& engine) {
  for (const std::vector<int64_t>& members : {std::vector<int64_t>{0, 1}, {1, 2}, {0, 2}}) {
    auto operation = make_operation(OpKind::kAddProcessSet, "add", {}, {});
    operation->request.ranks = members;
    run_operation(engine, operation);
  }
}

// All ranks end with the report of a deadlock.
void check_ends(const std::array<Way, 3>& ways, const std::vector<std::string>& told, Wire wire = Wire::kMemory) {
  CrossedRanks crossed;
  World world(3, crossed.options(), wire);
  world.run([&](int rank) { add_pairs(world.engine(rank)); });
  const Watchers watchers(world, [](int) { return Threads{}; });
  std::atomic<int> num_ended{0};
  std::thread time([&] { crossed.advance_until([&] { return num_ended == 3; }); });
  const TimePoint started = crossed.clock->now();
  world.run([&](int rank) {
    auto operation = go(world.engine(rank), ways.at(static_cast<size_t>(rank)));
    const Waiting waiting(*operation);
    const TimePoint until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!world.engine(rank).wait(*operation, std::chrono::milliseconds(200)) &&
           std::chrono::steady_clock::now() < until) {
    }
    ++num_ended;
    REQUIRE(operation->done() && operation->error().has_value());
    CHECK(operation->error()->kind() == ErrorKind::kStalled);
    for (const std::string& part : told) CHECK(contains(operation->error()->what(), part));
  });
  time.join();
  CHECK(crossed.clock->now() - started >= kAge);
}

TEST("deadlock: a join of the job on some ranks, and an operation of a process set on another") {
  const Way join{.kind = OpKind::kJoin};
  for (const Wire wire : {Wire::kMemory, Wire::kSockets}) {
    check_ends({join, {.kind = OpKind::kAllreduce, .set = 1, .name = "x"}, join},
               {"join.noname", "x", "rank 1: [join.noname]", "train.py:21"}, wire);
  }
  // Here another rank than that of the join coordinates the process set.
  check_ends({join, join, {.kind = OpKind::kAllreduce, .set = 2, .name = "x"}}, {"join.noname", "x", "train.py:22"});
}

TEST("deadlock: a ring of process sets, of which no rank is in all") {
  check_ends({Way{.set = 1}, {.set = 2}, {.set = 3}}, {"rank 0", "rank 1", "rank 2", "barrier.noname"});
  check_ends({Way{.kind = OpKind::kBroadcast, .set = 3, .name = "b"}, {.kind = OpKind::kJoin, .set = 1}, {.set = 2}},
             {"b", "join.noname", "barrier.noname"});
}

TEST("deadlock: a ring of process sets is none while one of its ranks may go on") {
  CrossedRanks crossed;
  World world(3, crossed.options());
  world.run([&](int rank) { add_pairs(world.engine(rank)); });
  const Watchers watchers(world, [](int rank) { return rank == 2 ? Threads{{.id = 1}} : Threads{}; });
  std::atomic<bool> asked{false};
  std::thread time([&] {
    crossed.advance_until([&] { return watchers.num_answers() >= 12 || world.engine(0).error().has_value(); });
    asked = true;
  });
  world.run([&](int rank) {
    Engine& engine = world.engine(rank);
    auto operation = go(engine, {.set = static_cast<uint32_t>(rank) + 1});
    {
      const Waiting waiting(*operation);
      while (!asked && !engine.wait(*operation, std::chrono::milliseconds(20))) {
      }
    }
    auto other = go(engine, {.set = static_cast<uint32_t>((rank + 2) % 3) + 1});
    CHECK(engine.wait(*operation, std::chrono::seconds(20)));
    CHECK(engine.wait(*other, std::chrono::seconds(20)));
    CHECK(!operation->error().has_value());
  });
  time.join();
  CHECK(watchers.num_answers() >= 12);
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
