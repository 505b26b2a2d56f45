// Weighted averages, whatever way the values take. What has no weight is never read into them.
#include <cmath>
#include <limits>

#include "testing/array.h"
#include "testing/check.h"
#include "testing/world.h"

namespace hvd::testing {
namespace {

constexpr Wire kAllWires[] = {Wire::kMemory, Wire::kSockets, Wire::kTcp, Wire::kMpi, Wire::kHosts};
constexpr DType kWeighable[] = {DType::kFloat16, DType::kBFloat16, DType::kFloat32, DType::kFloat64};
// Small values travel with the announcement, large ones by themselves.
constexpr int64_t kNumElements[] = {3, 5000};

constexpr double kNoNumber = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Weighted {
  std::string name = {};
  OpKind kind = OpKind::kAllreduce;
  DType dtype = DType::kFloat32;
  int64_t count = 3;
  bool in_place = false;
  double value = 0.0;
  double weight = 1.0;
};

// A submitted average, and its memory.
class Average {
 public:
  Average(Engine& engine, const Weighted& how)
      : how_(how), input_(how.dtype, {how.count}), output_(how.dtype, {rows_of(engine)}) {
    for (int64_t i = 0; i < how.count; ++i) input_.set(i, how.value);
    const Buffer input = input_.view();
    operation_ = make_operation(how.kind, how.name, {input}, {how.in_place ? input : output_.view()});
    operation_->request.reduce_op = ReduceOp::kAverage;
    operation_->request.weight = how.weight;
    submit_to(engine, operation_, false);
  }

  void check(Engine& engine, double expected) {
    REQUIRE(engine.wait(*operation_, std::chrono::seconds(30)));
    if (operation_->error()) throw Error(*operation_->error());
    Array& result = how_.in_place ? input_ : output_;
    for (int64_t i = 0; i < result.count(); ++i) {
      if (result.get(i) == expected) continue;
      report(__FILE__, __LINE__, how_.name + " is " + std::to_string(result.get(i)));
      break;
    }
    if (how_.in_place) return;
    for (int64_t i = 0; i < how_.count; ++i) {  // what belongs to the caller
      CHECK(input_.get(i) == how_.value || (std::isnan(how_.value) && std::isnan(input_.get(i))));
    }
  }

 private:
  [[nodiscard]] int64_t rows_of(const Engine& engine) const {
    if (how_.kind != OpKind::kReducescatter) return how_.count;
    return how_.count / engine.size() + (engine.rank() < how_.count % engine.size() ? 1 : 0);
  }

  Weighted how_;
  Array input_;
  Array output_;
  std::shared_ptr<Operation> operation_;
};

// The job's average is 6 of the ranks with a weight, by `counts`; the others have what is no number.
void check_without_weight(Engine& engine, const std::function<bool(int rank)>& counts, double nothing) {
  const bool mine_counts = counts(engine.rank());
  for (const int64_t count : kNumElements) {
    std::vector<std::unique_ptr<Average>> averages;  // in flight together, so that they are fused
    for (const DType dtype : kWeighable) {
      for (const bool in_place : {false, true}) {
        for (const OpKind kind : {OpKind::kAllreduce, OpKind::kReducescatter}) {
          if (in_place && kind == OpKind::kReducescatter) continue;
          Weighted how{.kind = kind, .dtype = dtype, .count = count, .in_place = in_place};
          how.name = std::string(name_of(kind)) + "." + std::string(name_of(dtype)) + std::to_string(count) +
                     (in_place ? " in place" : "");
          how.value = mine_counts ? 6.0 : nothing;
          how.weight = mine_counts ? 2.0 : 0.0;
          averages.push_back(std::make_unique<Average>(engine, how));
        }
      }
    }
    for (const auto& average : averages) average->check(engine, 6.0);
  }
}

TEST("weights: what has no weight contributes nothing, also if it is no number") {
  for (const Wire wire : kAllWires) {
    for (const int size : {2, 5}) {
      if (kSanitized && (size == 5) != (wire == Wire::kHosts)) continue;
      World world(size, {}, wire);
      world.run([&](int rank) {
        Engine& engine = world.engine(rank);
        check_without_weight(engine, [](int other) { return other == 0; }, kNoNumber);
        check_without_weight(engine, [](int other) { return other != 0; }, kInfinity);
        check_without_weight(engine, [](int other) { return other % 2 == 1; }, -kInfinity);
      });
    }
  }
}

TEST("weights: a small value without weight does not count either if somebody waits for it") {
  World world(3);
  world.run([&](int rank) {
    Array values(DType::kFloat32, {3});
    for (int64_t i = 0; i < 3; ++i) values.set(i, rank == 1 ? 6.0 : kNoNumber);
    auto operation = make_allreduce("x", {values.view()}, {values.view()}, ReduceOp::kAverage);
    operation->request.weight = rank == 1 ? 0.5 : -0.0;
    operation->request.prescale = 2.0;
    run_operation(world.engine(rank), operation);
    CHECK_EQ(values.get(2), 12.0);
  });
  CHECK_EQ(world.engine(0).statistics().batches, 0U);
}

TEST("weights: weights whose sum no number holds are refused") {
  World world(2);
  for (const int64_t count : kNumElements) {
    world.run([&](int rank) {
      Array values(DType::kFloat64, {count});
      auto operation = make_allreduce("x", {values.view()}, {values.view()}, ReduceOp::kAverage);
      operation->request.weight = 1e308;
      try {
        run_operation(world.engine(rank), operation);
        report(__FILE__, __LINE__, "1e308 and 1e308 were added");
      } catch (const Error& error) {
        CHECK(error.kind() == ErrorKind::kMismatch);
        CHECK(contains(error.what(), "the weights of all ranks sum up to inf"));
      }
    });
  }
}

TEST("weights: the average counts each rank as often as its weight says") {
  for (const int64_t count : kNumElements) {
    World world(2);
    world.run([&](int rank) {
      for (const double weight : {1.0, 0.0}) {
        Average average(world.engine(rank), {.name = "x",
                                             .dtype = DType::kFloat64,
                                             .count = count,
                                             .value = rank == 0 ? 8.0 : 4.0,
                                             .weight = rank == 0 ? weight : 3.0});
        average.check(world.engine(rank), weight == 1.0 ? 5.0 : 4.0);
      }
    });
  }
}

}  // namespace
}  // namespace hvd::testing
