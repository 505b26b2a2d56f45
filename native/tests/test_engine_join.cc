#include <cmath>
#include <cstring>
#include <limits>

#include "testing/array.h"
#include "testing/check.h"
#include "testing/world.h"

namespace hvd::testing {
namespace {

int join(Engine& engine, bool divide_by_initial_world_size = true) {
  auto operation = make_operation(OpKind::kJoin, "join.noname", {}, {});
  operation->request.divide_by_initial_world_size = divide_by_initial_world_size;
  run_operation(engine, operation);
  return operation->result.last_joined;
}

template <typename T>
T reduce_one(Engine& engine, const std::string& name, ReduceOp op, T value, size_t count, double prescale = 1.0) {
  std::vector<T> values(count, value);
  auto operation = make_operation(OpKind::kAllreduce, name, {view(values)}, {view(values)});
  operation->request.reduce_op = op;
  operation->request.prescale = prescale;
  run_operation(engine, operation);
  return values.back();
}

// Small values travel with the announcement, large ones by themselves.
constexpr size_t kCounts[] = {3, 5000};

TEST("join: a rank that has joined changes nothing in a reduction but what Average divides by") {
  for (const Wire wire : {Wire::kMemory, Wire::kSockets, Wire::kMpi}) {
    const int size = 3;
    World world(size, {}, wire);
    world.run([&](int rank) {
      Engine& engine = world.engine(rank);
      for (int first = 0; first < size; ++first) {
        if (rank != first) {
          const double mine = rank + 2.0;
          double sum = 0.0;
          double product = 1.0;
          double least = std::numeric_limits<double>::infinity();
          double greatest = -least;
          for (int other = 0; other < size; ++other) {
            if (other == first) continue;
            sum += other + 2.0;
            product *= other + 2.0;
            least = std::min(least, other + 2.0);
            greatest = std::max(greatest, other + 2.0);
          }
          for (const size_t count : kCounts) {
            CHECK_EQ(reduce_one(engine, "sum", ReduceOp::kSum, mine, count), sum);
            CHECK(std::abs(reduce_one(engine, "average", ReduceOp::kAverage, mine, count) - sum / size) < 1e-12);
            CHECK_EQ(reduce_one(engine, "min", ReduceOp::kMin, mine, count, -1.0), -greatest);
            CHECK_EQ(reduce_one(engine, "max", ReduceOp::kMax, mine, count, -1.0), -least);
            CHECK_EQ(reduce_one(engine, "product", ReduceOp::kProduct, mine, count), product);
            CHECK_EQ(reduce_one(engine, "adasum", ReduceOp::kAdasum, 0.0, count), 0.0);
            CHECK_EQ(reduce_one<int32_t>(engine, "ints", ReduceOp::kMin, rank + 2, count), static_cast<int32_t>(least));
          }
        }
        CHECK(join(engine) != first);
      }
      CHECK_EQ(reduce_one(engine, "sum", ReduceOp::kSum, 1.0, 3), 3.0);
    });
  }
}

TEST("join: Average can divide by the ranks that have values") {
  World world(3);
  world.run([&](int rank) {
    Engine& engine = world.engine(rank);
    if (rank != 1) {
      for (const size_t count : kCounts) {
        CHECK_EQ(reduce_one(engine, "average", ReduceOp::kAverage, rank + 1.0, count), 2.0);
      }
    }
    join(engine, false);
    CHECK_EQ(reduce_one(engine, "average", ReduceOp::kAverage, rank + 1.0, 5), 2.0);
  });
}

TEST("join: a rank that has joined gives no rows and takes rows that nobody reads") {
  World world(3);
  world.run([&](int rank) {
    Engine& engine = world.engine(rank);
    if (rank != 0) {
      std::vector<int32_t> rows(static_cast<size_t>(rank), rank);
      auto gather = make_operation(OpKind::kAllgather, "gather", {view(rows)}, {});
      run_operation(engine, gather);
      REQUIRE(gather->result.arrays.at(0).shape == Shape{3});
      const auto* values = reinterpret_cast<const int32_t*>(gather->result.arrays[0].data.get());
      CHECK(values[0] == 1 && values[1] == 2 && values[2] == 2);

      std::vector<int32_t> parts{rank, rank, rank};
      auto exchange = make_operation(OpKind::kAlltoall, "exchange", {view(parts)}, {});
      run_operation(engine, exchange);
      CHECK(exchange->result.received_splits == std::vector<int64_t>({0, 1, 1}));

      std::vector<float> input(7, 1.0F);
      std::vector<float> output(2);
      auto scatter = make_operation(OpKind::kReducescatter, "scatter", {view(input)}, {view(output)});
      run_operation(engine, scatter);
      CHECK_EQ(output[1], 2.0F);

      std::vector<float> state(4000, static_cast<float>(rank));
      auto broadcast = make_operation(OpKind::kBroadcast, "state", {view(state)}, {view(state)});
      broadcast->request.root = 2;
      run_operation(engine, broadcast);
      CHECK_EQ(state.back(), 2.0F);
      run_operation(engine, make_operation(OpKind::kBarrier, "barrier.noname", {}, {}));
    }
    join(engine);
  });
}

TEST("join: works with names that have a number, and with several tensors at once, over and over") {
  World world(3);
  world.run([&](int rank) {
    Engine& engine = world.engine(rank);
    for (int epoch = 0; epoch < 20; ++epoch) {
      const int steps = 1 + (rank + epoch) % 3;
      for (int step = 0; step < steps; ++step) {
        std::vector<std::vector<float>> tensors(8, std::vector<float>(2000, 1.0F));
        std::vector<std::shared_ptr<Operation>> operations;
        for (size_t i = 0; i < tensors.size(); ++i) {
          operations.push_back(
              make_operation(OpKind::kAllreduce, "t" + std::to_string(i), {view(tensors[i])}, {view(tensors[i])}));
          engine.submit(operations.back());
        }
        int active = 0;  // ranks with at least as many steps
        for (int other = 0; other < 3; ++other) active += 1 + (other + epoch) % 3 > step ? 1 : 0;
        for (size_t i = 0; i < tensors.size(); ++i) {
          CHECK(engine.wait(*operations[i], std::chrono::seconds(30)));
          CHECK_EQ(tensors[i].back(), static_cast<float>(active));
        }
      }
      CHECK((join(engine) + epoch) % 3 == 2);
    }
  });
}

TEST("join: the device is a hint, which hosts without a GPU pass over") {
  EngineOptions options;
  options.gpu = GpuOptions{};  // looks for a driver in no place, and finds none
  World world(2, options);
  world.run([&](int rank) {
    auto operation = make_operation(OpKind::kJoin, "join.noname", {}, {});
    operation->request.device = rank;
    run_operation(world.engine(rank), operation);
    CHECK(operation->result.last_joined >= 0);
  });
}

}  // namespace
}  // namespace hvd::testing
