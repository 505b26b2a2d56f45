// What a reduction computes, to the bit, whatever way its values take: factors, divisions, and averages of integers.
#include <cstring>

#include "testing/array.h"
#include "testing/check.h"
#include "testing/world.h"
#include "tests/test_reduce_reference.h"

namespace hvd::testing {
namespace {

constexpr Wire kWires[] = {Wire::kMemory, Wire::kSockets, Wire::kTcp, Wire::kMpi, Wire::kHosts};
constexpr DType kIntegers[] = {DType::kUInt8,  DType::kInt8,  DType::kUInt16, DType::kInt16,
                               DType::kUInt32, DType::kInt32, DType::kUInt64, DType::kInt64};
constexpr DType kFloats[] = {DType::kFloat16, DType::kBFloat16, DType::kFloat32, DType::kFloat64};
// Small values travel with the announcement, large ones by themselves.
constexpr size_t kCounts[] = {5, 4099};

struct Factors {
  double prescale = 1.0;
  double postscale = 1.0;
};

template <class T>
Buffer view_of(std::vector<T>& values, DType dtype) {
  return {reinterpret_cast<std::byte*>(values.data()), dtype, {static_cast<int64_t>(values.size())}};
}

template <class T>
std::vector<T> allreduced(Engine& engine, DType dtype, ReduceOp op, std::vector<T> values, Factors factors = {}) {
  std::vector<T> result(values.size());
  auto operation = make_allreduce("x" + std::string(name_of(dtype)) + std::to_string(values.size()),
                                  {view_of(values, dtype)}, {view_of(result, dtype)}, op);
  operation->request.prescale = factors.prescale;
  operation->request.postscale = factors.postscale;
  run_operation(engine, operation);
  return result;
}

template <class T>
bool same(const std::vector<T>& got, const std::vector<T>& wanted) {
  return first_difference(reinterpret_cast<const std::byte*>(got.data()), wanted.data(), wanted.size()) ==
         wanted.size();
}

template <class T>
void check_same(const std::string& what, DType dtype, const std::vector<T>& got, const std::vector<T>& wanted) {
  if (!same(got, wanted)) report(__FILE__, __LINE__, what + " of " + std::string(name_of(dtype)) + " differs");
}

// What all ranks give, by rank.
template <class T>
std::vector<std::vector<T>> any_values(int size, size_t count) {
  Random random;
  std::vector<std::vector<T>> values(static_cast<size_t>(size), std::vector<T>(count));
  for (auto& mine : values) {
    for (T& value : mine) value = random_element<T>(random);
  }
  return values;
}

// Each element is zero on all ranks but one, so that every order of additions gives the same.
template <class T>
std::vector<std::vector<T>> spread_values(int size, size_t count) {
  auto values = any_values<T>(size, count);
  for (size_t rank = 0; rank < values.size(); ++rank) {
    for (size_t i = 0; i < count; ++i) {
      if (i % values.size() != rank) values[rank][i] = T{};
    }
  }
  return values;
}

template <class T>
std::vector<T> times(const std::vector<T>& values, double factor) {
  return expected_reduce(ReduceOp::kSum, std::vector<std::vector<T>>{values}, 1, factor);
}

template <class T>
void check_factors(Engine& engine, DType dtype, size_t count) {
  const auto values = spread_values<T>(engine.size(), count);
  const auto& mine = values[static_cast<size_t>(engine.rank())];
  const auto sum = expected_reduce(ReduceOp::kSum, values, values.size(), 1.0);
  for (const double factor : {0.1, 1 / 3., -1.7}) {
    auto products = values;  // to be added up, as what is rounded to -0 becomes 0 there
    for (auto& each : products) each = times(each, factor);
    check_same("prescale", dtype, allreduced(engine, dtype, ReduceOp::kSum, mine, {.prescale = factor}),
               expected_reduce(ReduceOp::kSum, products, products.size(), 1.0));
    check_same("postscale", dtype, allreduced(engine, dtype, ReduceOp::kSum, mine, {.postscale = factor}),
               times(sum, factor));
    const auto mean = expected_average(values, values.size(), factor, engine.size());
    check_same("average", dtype, allreduced(engine, dtype, ReduceOp::kAverage, mine, {.postscale = factor}), mean);
  }
}

void in_worlds(const std::function<void(Engine& engine)>& body) {
  for (const Wire wire : kWires) {
    for (const int size : {2, 5}) {
      if (kSanitized && (size == 5) != (wire == Wire::kHosts)) continue;
      World world(size, {}, wire);
      world.run([&](int rank) { body(world.engine(rank)); });
    }
  }
}

TEST("engine numbers: factors and divisions are those of the dtype") {
  in_worlds([](Engine& engine) {
    for (const DType dtype : kFloats) {
      for (const size_t count : kCounts) {
        with_type(dtype, [&](auto element) {
          if constexpr (kIsFloating<decltype(element)>) check_factors<decltype(element)>(engine, dtype, count);
        });
      }
    }
  });
}

template <class T>
void check_integer_averages(Engine& engine, DType dtype, size_t count) {
  const auto values = any_values<T>(engine.size(), count);
  const auto& mine = values[static_cast<size_t>(engine.rank())];
  const auto mean = expected_average(values, values.size(), 1.0, engine.size());
  check_same("average", dtype, allreduced(engine, dtype, ReduceOp::kAverage, mine), mean);
  auto scaled = values;
  for (auto& each : scaled) each = times(each, 0.7);
  const auto scaled_mean = expected_average(scaled, scaled.size(), 1.0, engine.size());
  check_same("prescaled average", dtype, allreduced(engine, dtype, ReduceOp::kAverage, mine, {.prescale = 0.7}),
             scaled_mean);
}

TEST("engine numbers: averages of integers are exact, however large these are") {
  in_worlds([](Engine& engine) {
    for (const DType dtype : kIntegers) {
      for (const size_t count : kCounts) {
        with_type(dtype, [&](auto element) {
          if constexpr (std::is_integral_v<decltype(element)>) {
            check_integer_averages<decltype(element)>(engine, dtype, count);
          }
        });
      }
    }
  });
}

TEST("engine numbers: an average of integers times a factor is truncated once") {
  in_worlds([](Engine& engine) {
    for (const size_t count : kCounts) {
      const std::vector<int64_t> mine(count, engine.rank() == 0 ? 8 : 7);
      const auto sum = static_cast<double>(7 * engine.size() + 1);
      const auto expected = static_cast<int64_t>(sum * (3.0 / engine.size()));
      const auto got = allreduced(engine, DType::kInt64, ReduceOp::kAverage, mine, {.postscale = 3.0});
      CHECK_EQ(got.back(), expected);
      const std::vector<int8_t> large(count, 100);
      CHECK_EQ(allreduced(engine, DType::kInt8, ReduceOp::kAverage, large, {.postscale = 2.0}).back(), 127);
    }
  });
}

// Partial sums of what is averaged would wrap around in int8.
TEST("engine numbers: averages of integers with each algorithm between hosts") {
  for (const Algorithm algorithm : {Algorithm::kExchange, Algorithm::kDirect, Algorithm::kRing, Algorithm::kDoubling,
                                    Algorithm::kTrees, Algorithm::kHierarchical}) {
    EngineOptions options;
    options.plans.allreduce = algorithm;
    World world(5, options, Wire::kHosts);
    world.run([&](int rank) {
      for (const size_t count : {size_t{3}, size_t{60'001}}) {
        const std::vector<int8_t> mine(count, static_cast<int8_t>(100 + rank));
        CHECK_EQ(allreduced(world.engine(rank), DType::kInt8, ReduceOp::kAverage, mine).back(), 102);
      }
    });
  }
}

TEST("engine numbers: rows of integers are averaged exactly") {
  in_worlds([](Engine& engine) {
    const size_t rows = 2 * static_cast<size_t>(engine.size()) + 1;
    for (const size_t width : {size_t{1}, size_t{3001}}) {
      const auto values = any_values<int64_t>(engine.size(), rows * width);
      const auto mean = expected_average(values, values.size(), 1.0, engine.size());
      auto mine = values[static_cast<size_t>(engine.rank())];
      const size_t own_rows = engine.rank() == 0 ? 3 : 2;
      const size_t before = engine.rank() == 0 ? 0 : 2 * static_cast<size_t>(engine.rank()) + 1;
      std::vector<int64_t> got(own_rows * width);
      const auto operation = make_operation(OpKind::kReducescatter, "rows" + std::to_string(width),
                                            {view(mine, {static_cast<int64_t>(rows), static_cast<int64_t>(width)})},
                                            {view(got, {static_cast<int64_t>(own_rows), static_cast<int64_t>(width)})});
      operation->request.reduce_op = ReduceOp::kAverage;
      run_operation(engine, operation);
      CHECK(std::memcmp(got.data(), mean.data() + before * width, got.size() * sizeof(int64_t)) == 0);
    }
  });
}

// One rank has joined: its zeros count, or it does not.
TEST("engine numbers: averages of integers go on when a rank has joined") {
  for (const Wire wire : {Wire::kMemory, Wire::kMpi, Wire::kHosts}) {
    for (const bool by_all : {true, false}) {
      World world(3, {}, wire);
      world.run([&](int rank) {
        Engine& engine = world.engine(rank);
        if (rank != 1) {
          for (const size_t count : kCounts) {
            const std::vector<int64_t> mine(count, INT64_MAX - rank);
            const int64_t expected = by_all ? INT64_MAX / 3 * 2 : INT64_MAX - 1;
            CHECK_EQ(allreduced(engine, DType::kInt64, ReduceOp::kAverage, mine).back(), expected);
          }
        }
        auto join = make_operation(OpKind::kJoin, "join.noname", {}, {});
        join->request.divide_by_initial_world_size = by_all;
        run_operation(engine, join);
      });
    }
  }
}

}  // namespace
}  // namespace hvd::testing
