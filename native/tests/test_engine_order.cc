// Operations in flight together: other orders on other ranks, many threads, few numbers for many names.
#include <algorithm>
#include <random>
#include <thread>

#include "engine/engine.h"
#include "testing/array.h"
#include "testing/check.h"
#include "testing/world.h"

namespace hvd::testing {
namespace {

constexpr Duration kPatience = std::chrono::seconds(30);

void finish(Engine& engine, const std::shared_ptr<Operation>& operation) {
  REQUIRE(engine.wait(*operation, kPatience));
  if (operation->error()) throw Error(*operation->error());
}

// One of many operations of one name, different in kind and length, whose result is known.
class Task {
 public:
  Task(int number, int rank, int size) : number_(number), size_(size) {
    const int64_t count = std::vector<int64_t>{1, 40, 900, 3000, 20'000}[static_cast<size_t>(number % 5)];
    const std::string name = "task" + std::to_string(number);
    input_ = std::make_unique<Array>(samples(DType::kFloat32, ReduceOp::kSum, rank, {count}));
    output_ = std::make_unique<Array>(DType::kFloat32, Shape{count});
    const OpKind kind = kinds_[number / 5 % 4];
    const bool has_output = kind == OpKind::kAllreduce || kind == OpKind::kBroadcast;
    operation_ = make_operation(kind, name, {input_->view()}, {});
    if (has_output) operation_->request.outputs = {output_->view()};
    if (kind == OpKind::kBroadcast) operation_->request.root = number % size;
    if (kind == OpKind::kBarrier) operation_->request.inputs.clear();
  }

  [[nodiscard]] const std::shared_ptr<Operation>& operation() const { return operation_; }

  [[nodiscard]] bool right() const {
    const int64_t count = input_->count();
    for (int64_t i = 0; i < count; i += 1 + count / 50) {
      switch (operation_->spec.kind) {
        case OpKind::kAllreduce:
          if (output_->get(i) != reduced(DType::kFloat32, ReduceOp::kSum, size_, i)) return false;
          break;
        case OpKind::kBroadcast:
          if (output_->get(i) != sample(DType::kFloat32, ReduceOp::kSum, number_ % size_, i)) return false;
          break;
        case OpKind::kAllgather:
          for (int from = 0; from < size_; ++from) {
            const double got = element(DType::kFloat32, operation_->result.arrays.at(0).data.get(), from * count + i);
            if (got != sample(DType::kFloat32, ReduceOp::kSum, from, i)) return false;
          }
          break;
        default:
          break;
      }
    }
    return true;
  }

 private:
  static constexpr OpKind kinds_[] = {OpKind::kAllreduce, OpKind::kBroadcast, OpKind::kAllgather, OpKind::kBarrier};
  int number_;
  int size_;
  std::unique_ptr<Array> input_;
  std::unique_ptr<Array> output_;
  std::shared_ptr<Operation> operation_;
};

// Submits `count` operations, on each rank in its own order, and waits for them in yet another one.
void run_shuffled(Engine& engine, int count, unsigned seed) {
  std::vector<Task> tasks;
  for (int number = 0; number < count; ++number) tasks.emplace_back(number, engine.rank(), engine.size());
  std::mt19937 random(seed * 100 + static_cast<unsigned>(engine.rank()));
  std::vector<size_t> order(tasks.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::shuffle(order.begin(), order.end(), random);
  for (const size_t index : order) engine.submit(tasks[index].operation());
  std::shuffle(order.begin(), order.end(), random);
  for (const size_t index : order) finish(engine, tasks[index].operation());
  for (const Task& task : tasks) CHECK(task.right());
}

TEST("engine: 300 operations, submitted in another order on each rank") {
  for (const Wire wire : {Wire::kMemory, Wire::kSockets, Wire::kTinySockets}) {
    for (const int size : {2, 3, 5}) {
      if (kSanitized && size == 5) continue;
      if (wire == Wire::kTinySockets && size > 2) continue;
      World world(size, {}, wire);
      world.run([&](int rank) {
        run_shuffled(world.engine(rank), 300, 1);
        run_shuffled(world.engine(rank), 300, 2);
      });
      for (int rank = 0; rank < size; ++rank) CHECK(world.engine(rank).statistics().announced_by_id > 200);
    }
  }
}

// They need no ring each, and none is forgotten: nobody waits, so the engine's threads do all the work.
TEST("engine: operations that may gather begin without a caller who waits") {
  for (const Wire wire : {Wire::kMemory, Wire::kSockets}) {
    World world(3, {}, wire);
    world.run([&](int rank) {
      Engine& engine = world.engine(rank);
      for (int round = 0; round < (kSanitized ? 3 : 20); ++round) {
        std::vector<Task> tasks;
        for (int number = 0; number < 30; ++number) tasks.emplace_back(number, rank, engine.size());
        for (const Task& task : tasks) {
          task.operation()->request.gathers = true;
          engine.submit(task.operation());
        }
        const TimePoint until = std::chrono::steady_clock::now() + kPatience;
        for (const Task& task : tasks) {
          while (!task.operation()->done() && std::chrono::steady_clock::now() < until) std::this_thread::yield();
          REQUIRE(task.operation()->done());
          CHECK(task.right());
        }
      }
    });
  }
}

// How long rank 0 needs for an operation that may gather while another of its threads waits for one that comes late.
Duration time_beside_a_sleeper(Engine& engine) {
  std::vector<float> values(2, 1.0F);
  const auto late = make_operation(OpKind::kAllreduce, "late", {view(values)}, {view(values)});
  const Task task(3, engine.rank(), 2);
  if (engine.rank() == 1) {
    run_operation(engine, task.operation());
    run_operation(engine, late);
    return {};
  }
  std::thread waiting([&] { run_operation(engine, late); });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));  // mostly it sleeps then
  task.operation()->request.gathers = true;
  const TimePoint begin = std::chrono::steady_clock::now();
  engine.submit(task.operation());
  while (!task.operation()->done() && std::chrono::steady_clock::now() - begin < kPatience) std::this_thread::yield();
  const Duration took = std::chrono::steady_clock::now() - begin;
  waiting.join();
  return took;
}

// Over sockets a caller who drives sleeps among the connections, and the engine's thread leaves everything to it. By
// itself it looks a few times in a second.
TEST("engine: an operation that may gather wakes a caller who drives and sleeps") {
  for (const Wire wire : {Wire::kMemory, Wire::kSockets}) {
    World world(2, {}, wire);
    std::vector<Duration> times;
    world.run([&](int rank) {
      for (int round = 0; round < 5; ++round) {
        const Duration took = time_beside_a_sleeper(world.engine(rank));
        if (rank == 0) times.push_back(took);
      }
    });
    std::sort(times.begin(), times.end());
    CHECK(times[times.size() / 2] < std::chrono::milliseconds(80));
  }
}

// Two long allreduces are on their way and a third waits for its turn when the others are submitted.
TEST("engine: small and urgent operations overtake long ones") {
  const int64_t length = kSanitized ? int64_t{2} << 20 : int64_t{8} << 20;
  EngineOptions options;
  options.fusion_threshold = 0;
  World world(2, options, Wire::kTinySockets);
  world.run([&](int rank) {
    Engine& engine = world.engine(rank);
    std::vector<std::unique_ptr<Array>> arrays;
    const auto submit = [&](const std::string& name, int64_t count, int32_t priority) {
      arrays.push_back(std::make_unique<Array>(samples(DType::kFloat32, ReduceOp::kSum, rank, {count})));
      const Buffer view = arrays.back()->view();
      auto operation = make_operation(OpKind::kAllreduce, name, {view}, {view});
      operation->request.priority = priority;
      engine.submit(operation);
      return operation;
    };
    std::vector<std::shared_ptr<Operation>> longs;
    for (const char* name : {"first", "second", "third"}) longs.push_back(submit(name, length, 0));
    const auto urgent = submit("urgent", 500'000, 1);
    const auto small = submit("small", 20'000, 0);
    finish(engine, small);
    finish(engine, urgent);
    CHECK(!longs.back()->done());
    for (const auto& operation : longs) finish(engine, operation);
    for (const auto& array : arrays) CHECK_EQ(array->get(7), reduced(DType::kFloat32, ReduceOp::kSum, 2, 7));
  });
}

TEST("engine: few numbers for many names, and none") {
  for (const Wire wire : {Wire::kMemory, Wire::kSockets}) {
    for (const size_t capacity : {size_t{0}, size_t{1}, size_t{3}, size_t{20}}) {
      EngineOptions options;
      options.cache_capacity = capacity;
      World world(3, options, wire);
      world.run([&](int rank) {
        for (unsigned round = 0; round < (kSanitized ? 3 : 10); ++round) run_shuffled(world.engine(rank), 50, round);
      });
    }
  }
}

TEST("engine: every fusion threshold") {
  for (const size_t threshold : {size_t{0}, size_t{1}, size_t{6000}, size_t{1} << 30}) {
    EngineOptions options;
    options.fusion_threshold = threshold;
    World world(3, options);
    world.run([&](int rank) { run_shuffled(world.engine(rank), 150, 3); });
    const uint64_t fused = world.engine(1).statistics().fused_operations;
    if (threshold <= 1) CHECK_EQ(fused, 0U);
    if (threshold > 10'000) CHECK(fused > 0);
  }
}

// Some threads hand their operation over and wait at once, others submit many; all share one engine per rank.
TEST("engine: many threads on each rank") {
  for (const Wire wire : {Wire::kMemory, Wire::kSockets}) {
    const int size = 3;
    World world(size, {}, wire);
    const int rounds = kSanitized ? 20 : 100;
    world.run([&](int rank) {
      Engine& engine = world.engine(rank);
      std::vector<std::thread> threads;
      for (int thread = 0; thread < 4; ++thread) {
        threads.emplace_back([&, thread] {
          const int64_t count = thread % 2 == 0 ? 50 : 5000;
          for (int round = 0; round < rounds; ++round) {
            std::vector<Array> arrays;
            std::vector<std::shared_ptr<Operation>> operations;
            const int together = thread < 2 ? 1 : 5;
            for (int i = 0; i < together; ++i) arrays.push_back(samples(DType::kInt32, ReduceOp::kSum, rank, {count}));
            for (int i = 0; i < together; ++i) {
              const std::string name = std::to_string(thread) + "." + std::to_string(i);
              const Buffer buffer = arrays[static_cast<size_t>(i)].view();
              operations.push_back(make_allreduce(name, {buffer}, {buffer}));
              submit_to(engine, operations.back(), together == 1);
            }
            for (const auto& operation : operations) {
              if (!engine.wait(*operation, kPatience)) {
                report(__FILE__, __LINE__, operation->spec.name + " did not end");
                return;
              }
            }
            for (const Array& array : arrays) CHECK_EQ(array.get(1), reduced(DType::kInt32, ReduceOp::kSum, size, 1));
          }
        });
      }
      for (std::thread& thread : threads) thread.join();
    });
  }
}

// One caller drives until its own operation is done; what is ready by then must go on without it.
TEST("engine: nobody waits for the operations that are left when a waiting caller goes") {
  World world(2);
  world.run([&](int rank) {
    Engine& engine = world.engine(rank);
    for (int round = 0; round < (kSanitized ? 100 : 500); ++round) {
      std::vector<Array> arrays;
      std::vector<std::shared_ptr<Operation>> operations;
      for (int i = 0; i < 6; ++i) arrays.push_back(samples(DType::kFloat32, ReduceOp::kMax, rank, {3000}));
      for (size_t i = 0; i < 6; ++i) {
        auto operation = make_allreduce("x" + std::to_string(i), {arrays[i].view()}, {arrays[i].view()});
        operation->request.reduce_op = i % 2 == 0 ? ReduceOp::kMin : ReduceOp::kMax;
        operations.push_back(operation);
        submit_to(engine, operation, i == 5);
      }
      REQUIRE(engine.wait(*operations[5], kPatience));
      for (const auto& operation : operations) REQUIRE(operation->wait_done(kPatience));
    }
  });
}

TEST("engine: a name can be used again as soon as its result is seen, also in another shape") {
  for (const Wire wire : {Wire::kMemory, Wire::kSockets}) {
    World world(3, {}, wire);
    world.run([&](int rank) {
      for (int64_t round = 0; round < (kSanitized ? 60 : 300); ++round) {
        Array array = samples(DType::kFloat32, ReduceOp::kSum, rank, {1 + round / 10 * 211});
        run_operation(world.engine(rank), make_allreduce("x", {array.view()}, {array.view()}));
        CHECK_EQ(array.get(0), reduced(DType::kFloat32, ReduceOp::kSum, 3, 0));
      }
    });
  }
}

TEST("engine: wait gives up in time") {
  World world(2);
  Array array(DType::kFloat32, {3});
  auto operation = make_allreduce("alone", {array.view()}, {array.view()});
  Engine& engine = world.engine(0);
  submit_to(engine, operation, true);
  const auto start = std::chrono::steady_clock::now();
  CHECK(!engine.wait(*operation, std::chrono::milliseconds(30)));
  CHECK(!engine.wait(*operation, Duration::zero()));
  const auto taken = std::chrono::steady_clock::now() - start;
  CHECK(taken >= std::chrono::milliseconds(30));
  CHECK(taken < std::chrono::seconds(5));
  Array other(DType::kFloat32, {3});
  run_operation(world.engine(1), make_allreduce("alone", {other.view()}, {other.view()}));
  finish(engine, operation);
}

}  // namespace
}  // namespace hvd::testing
