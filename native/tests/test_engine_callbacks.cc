// What an operation wants to have called when it is done.
#include <atomic>
#include <condition_variable>
#include <mutex>

#include "engine/engine.h"
#include "testing/array.h"
#include "testing/check.h"
#include "testing/world.h"

namespace hvd::testing {
namespace {

constexpr auto kPatience = std::chrono::seconds(20);

// Counts down from several threads; the test waits until nothing is left.
class Countdown {
 public:
  explicit Countdown(int count) : left_(count) {}
  void arrive() {
    const std::lock_guard lock(mutex_);
    --left_;
    changed_.notify_all();
  }
  [[nodiscard]] bool wait() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kPatience, [this] { return left_ <= 0; });
  }
  [[nodiscard]] int left() {
    const std::lock_guard lock(mutex_);
    return left_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int left_;
};

// A sum that nobody waits for; the array and the operation stay until the world ends.
struct Sum {
  Sum(int rank, const std::string& name, int64_t count)
      : array(samples(DType::kFloat32, ReduceOp::kSum, rank, {count})),
        operation(make_allreduce(name, {array.view()}, {array.view()})) {}
  Array array;
  std::shared_ptr<Operation> operation;
};

TEST("engine callbacks: each is called once, when the result is there") {
  for (const int64_t count : {int64_t{3}, int64_t{9000}}) {
    World world(3);
    world.run([&](int rank) {
      constexpr int kNumSums = 50;
      Countdown countdown(kNumSums);
      std::vector<std::unique_ptr<Sum>> sums;
      std::atomic<int> wrong{0};
      for (int i = 0; i < kNumSums; ++i) {
        // Ranks submit in different orders.
        const int number = rank % 2 == 0 ? i : kNumSums - 1 - i;
        Sum& sum = *sums.emplace_back(std::make_unique<Sum>(rank, "x" + std::to_string(number), count));
        sum.operation->request.on_done = [&, raw = &sum] {
          const bool right = raw->operation->done() && !raw->operation->error() &&
                             raw->array.get(1) == reduced(DType::kFloat32, ReduceOp::kSum, 3, 1);
          if (!right) wrong.fetch_add(1);
          countdown.arrive();
        };
        world.engine(rank).submit(sum.operation);
      }
      CHECK(countdown.wait());
      CHECK_EQ(wrong.load(), 0);
      CHECK_EQ(countdown.left(), 0);
    });
  }
}

TEST("engine callbacks: one may submit the next operation, also while a caller waits") {
  World world(2);
  world.run([&](int rank) {
    constexpr int kLength = 100;
    Engine& engine = world.engine(rank);
    Countdown countdown(1);
    std::vector<std::unique_ptr<Sum>> chain;
    for (int i = 0; i < kLength; ++i) chain.push_back(std::make_unique<Sum>(rank, "link" + std::to_string(i), 5));
    for (int i = 0; i < kLength; ++i) {
      chain[static_cast<size_t>(i)]->operation->request.on_done = [&, i] {
        if (i + 1 == kLength) return countdown.arrive();
        engine.submit(chain[static_cast<size_t>(i) + 1]->operation);
      };
    }
    engine.submit(chain.front()->operation);
    for (int i = 0; i < kLength; ++i) {
      Array array = samples(DType::kFloat32, ReduceOp::kSum, rank, {3});
      run_operation(engine, make_allreduce("waited for", {array.view()}, {array.view()}));
    }
    CHECK(countdown.wait());
  });
}

TEST("engine callbacks: a wait calls those of other operations") {
  World world(2);
  world.run([&](int rank) {
    for (int round = 0; round < 50; ++round) {
      Countdown countdown(1);
      Sum early(rank, "early", 4);
      early.operation->request.on_done = [&] { countdown.arrive(); };
      world.engine(rank).submit(early.operation);
      Array array = samples(DType::kFloat32, ReduceOp::kSum, rank, {4});
      run_operation(world.engine(rank), make_allreduce("late", {array.view()}, {array.view()}));
      CHECK(countdown.wait());
    }
  });
}

// As TensorFlow's threads do.
TEST("engine callbacks: who waited once hears of the end from the callback, also if the others come later") {
  World world(2);
  for (int round = 0; round < 50; ++round) {
    Countdown gone(1);
    world.run([&](int rank) {
      Engine& engine = world.engine(rank);
      Countdown countdown(1);
      Sum sum(rank, "x", round % 2 == 0 ? 4 : 9000);
      sum.operation->request.on_done = [&] { countdown.arrive(); };
      if (rank == 1) CHECK(gone.wait());
      submit_to(engine, sum.operation, true);
      const bool done = engine.wait_once(*sum.operation, std::chrono::milliseconds(rank == 1 ? 20000 : 1));
      CHECK_EQ(done, rank == 1);
      CHECK(!sum.operation->waited_long);  // it does not keep the caller from going on
      if (rank == 0) gone.arrive();
      CHECK(countdown.wait());
      CHECK_EQ(sum.array.get(1), reduced(DType::kFloat32, ReduceOp::kSum, 2, 1));
    });
  }
}

TEST("engine callbacks: a mismatch is told, and the engine goes on") {
  World world(2);
  world.run([&](int rank) {
    Countdown countdown(1);
    Sum differs(rank, "differs", 3 + rank);
    differs.operation->request.on_done = [&] { countdown.arrive(); };
    world.engine(rank).submit(differs.operation);
    CHECK(countdown.wait());
    REQUIRE(differs.operation->error().has_value());
    CHECK(differs.operation->error()->kind() == ErrorKind::kMismatch);
  });
}

TEST("engine callbacks: all are called when the engine is closed, before close() returns") {
  World world(2);
  Countdown countdown(20);
  std::vector<std::unique_ptr<Sum>> sums;
  for (int i = 0; i < 20; ++i) {
    Sum& sum = *sums.emplace_back(std::make_unique<Sum>(0, "alone" + std::to_string(i), 4));
    sum.operation->request.on_done = [&] { countdown.arrive(); };
    world.engine(0).submit(sum.operation);
  }
  world.engine(0).close("the test ends it");
  CHECK_EQ(countdown.left(), 0);
  for (const auto& sum : sums) CHECK(sum->operation->error()->kind() == ErrorKind::kShutDown);
}

TEST("engine callbacks: all are called when a peer is lost") {
  World world(3, {}, Wire::kSockets, 2);
  Countdown countdown(2);
  std::vector<std::unique_ptr<Sum>> sums;
  for (int rank = 0; rank < 2; ++rank) {
    Sum& sum = *sums.emplace_back(std::make_unique<Sum>(rank, "x", 4));
    sum.operation->request.on_done = [&] { countdown.arrive(); };
    world.engine(rank).submit(sum.operation);
  }
  world.kill_victim();
  CHECK(countdown.wait());
  for (const auto& sum : sums) CHECK(sum->operation->error()->kind() == ErrorKind::kPeerLost);
}

TEST("engine callbacks: none is called of an operation that was refused") {
  World world(1);
  bool called = false;
  Sum sum(0, "x", 4);
  sum.operation->request.process_set = 7;
  sum.operation->request.on_done = [&] { called = true; };
  bool refused = false;
  try {
    world.engine(0).submit(sum.operation);
  } catch (const Error&) {
    refused = true;
  }
  CHECK(refused);
  world.engine(0).close("the test ends it");
  CHECK(!called);
}

TEST("engine: operations without a name are counted, anew after a join") {
  World world(2);
  world.run([&](int rank) {
    Engine& engine = world.engine(rank);
    std::vector<float> values(1, 1.0F);
    const auto run_unnamed = [&] {
      const auto operation = make_operation(OpKind::kAllreduce, "", {view(values)}, {view(values)});
      operation->request.name.reset();
      run_operation(engine, operation);
      return operation->spec.name;
    };
    const auto name_of = [](uint64_t number) { return "allreduce.noname." + std::to_string(number); };
    CHECK_EQ(run_unnamed(), name_of(1));
    if (rank == 1) CHECK_EQ(run_unnamed(), name_of(2));  // without rank 0, which has joined
    run_operation(engine, make_operation(OpKind::kJoin, kJoinName, {}, {}));
    CHECK_EQ(run_unnamed(), name_of((uint64_t{1} << 32) + 1));
  });
}

}  // namespace
}  // namespace hvd::testing
