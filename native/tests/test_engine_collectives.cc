#include <algorithm>
#include <cmath>
#include <cstring>

#include "engine/engine.h"
#include "plan/plan.h"
#include "testing/array.h"
#include "testing/check.h"
#include "testing/world.h"

namespace hvd::testing {
namespace {

constexpr DType kDTypes[] = {DType::kBool,     DType::kUInt8,   DType::kInt8,   DType::kUInt16, DType::kInt16,
                             DType::kUInt32,   DType::kInt32,   DType::kUInt64, DType::kInt64,  DType::kFloat16,
                             DType::kBFloat16, DType::kFloat32, DType::kFloat64};
constexpr Wire kWires[] = {Wire::kMemory, Wire::kSockets, Wire::kTinySockets, Wire::kTcp, Wire::kMpi};

// Runs a case in worlds of all sizes over all wires.
void in_worlds(const std::function<void(int size, int rank, Engine& engine)>& body, const EngineOptions& options = {}) {
  for (const Wire wire : kWires) {
    for (const int size : {1, 2, 3, 4, 5, 8}) {
      if (kSanitized && (size > 3 || (size < 3 && wire != Wire::kMemory))) continue;
      if ((wire == Wire::kTinySockets || wire == Wire::kTcp) && size != 3)
        continue;  // each few kilobytes take two switches of threads
      World world(size, options, wire);
      world.run([&](int rank) { body(size, rank, world.engine(rank)); });
    }
  }
}

// What an element becomes: factors are applied to the exact value, whole numbers are then truncated.
double scaled(DType dtype, double value, double factor) {
  if (dtype == DType::kBool || factor == 1.0) return value;
  return is_floating(dtype) ? value * factor : std::trunc(value * factor);
}

double tolerance(DType dtype, double value) {
  if (dtype == DType::kFloat64) return 1e-12 * std::abs(value);
  if (dtype == DType::kFloat32) return 1e-6 * std::abs(value);
  return is_floating(dtype) ? std::abs(value) / 128 : 0.0;
}

void check_reduced(const Array& result, ReduceOp op, int size, double factor, int64_t first = 0) {
  std::vector<double> expected;
  for (int64_t i = 0; i < kPeriod; ++i) {
    expected.push_back(scaled(result.dtype(), reduced(result.dtype(), op, size, i), factor));
  }
  for (int64_t i = 0, end = result.num_distinct(kPeriod); i < end; ++i) {
    const double wanted = expected[static_cast<size_t>((first + i) % kPeriod)];
    if (std::abs(result.get(i) - wanted) <= tolerance(result.dtype(), wanted)) continue;
    CHECK_EQ(result.get(i), wanted);
    return;
  }
}

std::string label(const char* what, DType dtype, ReduceOp op, int64_t count) {
  return std::string(what) + "." + std::string(name_of(dtype)) + "." + std::string(name_of(op)) + "." +
         std::to_string(count);
}

void check_allreduce(Engine& engine, DType dtype, ReduceOp op, int64_t count, bool in_place) {
  const int size = engine.size();
  Array input = samples(dtype, op, engine.rank(), {count});
  Array output(dtype, {count});
  Array& result = in_place ? input : output;
  run_operation(engine,
                make_allreduce(label(in_place ? "in" : "out", dtype, op, count), {input.view()}, {result.view()}, op));
  check_reduced(result, op, size, op == ReduceOp::kAverage ? 1.0 / size : 1.0);
  if (!in_place) CHECK(input.bytes() == samples(dtype, op, engine.rank(), {count}).bytes());
}

TEST("engine: allreduce of every dtype and operation, small and large, in place and not") {
  in_worlds([](int size, int rank, Engine& engine) {
    static_cast<void>(rank);
    for (const DType dtype : kDTypes) {
      if (kSanitized && size_of(dtype) > 2 && dtype != DType::kFloat32) continue;
      for (const ReduceOp op :
           {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
        if (op == ReduceOp::kProduct && size > 7 && size_of(dtype) == 1) continue;  // 2^8 does not fit
        if (op == ReduceOp::kAverage && !is_floating(dtype) && size > 2) continue;  // 1 / 3 is not exact
        for (const int64_t count : {int64_t{5}, int64_t{5000}}) check_allreduce(engine, dtype, op, count, count == 5);
      }
    }
  });
}

TEST("engine: allreduce of sizes around every limit") {
  in_worlds([](int size, int rank, Engine& engine) {
    static_cast<void>(rank);
    for (const int64_t count : {0, 1, 5, 1023, 1024, 1025, 8191, 8193, 100'000}) {
      if (kSanitized && count > 10'000 && size > 3) continue;
      check_allreduce(engine, DType::kFloat32, ReduceOp::kSum, count, count % 2 == 0);
    }
  });
}

TEST("engine: allreduce of millions of elements") {
  for (const Wire wire : kWires) {
    for (const int size : {2, 3, 4}) {
      if ((kSanitized || wire == Wire::kTinySockets) && size != 3) continue;
      World world(size, {}, wire);
      world.run([&](int rank) {
        check_allreduce(world.engine(rank), DType::kFloat32, ReduceOp::kSum,
                        kSanitized || wire == Wire::kTinySockets ? 200'000 : 3'000'000, size == 3);
      });
    }
  }
}

TEST("engine: prescale and postscale") {
  in_worlds([](int size, int rank, Engine& engine) {
    for (const int64_t count : {int64_t{7}, int64_t{20'000}}) {
      for (const DType dtype : {DType::kFloat16, DType::kBFloat16, DType::kFloat32, DType::kFloat64, DType::kInt32}) {
        Array input = samples(dtype, ReduceOp::kAverage, rank, {count});
        Array output(dtype, {count});
        const bool average = is_floating(dtype);
        auto operation = make_allreduce(label("scaled", dtype, ReduceOp::kSum, count), {input.view()}, {output.view()},
                                        average ? ReduceOp::kAverage : ReduceOp::kSum);
        operation->request.prescale = 2.0;
        operation->request.postscale = 4.0;
        run_operation(engine, operation);
        check_reduced(output, ReduceOp::kSum, size, average ? 8.0 / size : 8.0);
      }
    }
  });
}

TEST("engine: a group is one operation, also of several dtypes") {
  in_worlds([](int size, int rank, Engine& engine) {
    const DType dtypes[] = {DType::kFloat32, DType::kFloat16, DType::kInt64, DType::kFloat32, DType::kFloat64};
    const Shape shapes[] = {{3000}, {2, 7}, {}, {0}, {40, 30}};
    std::vector<Array> inputs;
    std::vector<Array> outputs;
    for (size_t i = 0; i < 5; ++i) {
      inputs.push_back(samples(dtypes[i], ReduceOp::kSum, rank, shapes[i]));
      outputs.emplace_back(dtypes[i], shapes[i]);
    }
    std::vector<Buffer> from;
    std::vector<Buffer> to;
    for (size_t i = 0; i < 5; ++i) {
      from.push_back(inputs[i].view());
      to.push_back(outputs[i].view());
    }
    for (int round = 0; round < 3; ++round) {
      run_operation(engine, make_allreduce("group", from, to));
      for (const Array& output : outputs) check_reduced(output, ReduceOp::kSum, size, 1.0);
    }
  });
}

// rows[r]: what rank r gives; row i of rank r holds `10 * r + i % 7`.
void check_allgather(Engine& engine, const std::string& name, const std::vector<int64_t>& rows, int64_t width) {
  const int64_t mine = rows[static_cast<size_t>(engine.rank())];
  Array input(DType::kInt32, {mine, width});
  for (int64_t i = 0; i < input.count(); ++i) input.set(i, static_cast<double>(10 * engine.rank() + i / width % 7));
  auto operation = make_operation(OpKind::kAllgather, name, {input.view()}, {});
  run_operation(engine, operation);
  REQUIRE(operation->result.arrays.size() == 1);
  const OwnedArray& result = operation->result.arrays.front();
  int64_t at = 0;
  bool right = true;
  for (int64_t sender = 0; sender < engine.size(); ++sender) {
    for (int64_t i = 0; i < rows[static_cast<size_t>(sender)] * width; ++i, ++at) {
      right =
          right && element(DType::kInt32, result.data.get(), at) == static_cast<double>(10 * sender + i / width % 7);
    }
  }
  CHECK(right);
  CHECK(result.shape == (Shape{width == 0 ? result.shape[0] : at / width, width}));
}

TEST("engine: allgather, even, uneven and of nothing") {
  in_worlds([](int size, int rank, Engine& engine) {
    static_cast<void>(rank);
    const auto all = static_cast<size_t>(size);
    std::vector<int64_t> uneven(all);
    std::vector<int64_t> one(all, 0);
    for (size_t r = 0; r < all; ++r) uneven[r] = static_cast<int64_t>(r * 5 % 7) * 1000;
    one[all - 1] = 3;
    check_allgather(engine, "even", std::vector<int64_t>(all, 4), 3);
    check_allgather(engine, "uneven", uneven, 5);
    check_allgather(engine, "one", one, 2);
    check_allgather(engine, "nothing", std::vector<int64_t>(all, 0), 2);
    check_allgather(engine, "no width", std::vector<int64_t>(all, 4), 0);
  });
}

TEST("engine: alltoall with splits of all lengths") {
  in_worlds([](int size, int rank, Engine& engine) {
    for (const int64_t factor : {int64_t{1}, int64_t{2000}}) {
      const auto rows_between = [&](int from, int to) { return factor * ((from * 3 + to * 5) % 4); };
      std::vector<int64_t> splits;
      int64_t total = 0;
      for (int to = 0; to < size; ++to) total += splits.emplace_back(rows_between(rank, to));
      Array input(DType::kInt64, {total, 2});
      int64_t at = 0;
      for (int to = 0; to < size; ++to) {
        for (int64_t i = 0; i < rows_between(rank, to) * 2; ++i)
          input.set(at++, rank * 1000.0 + to * 100.0 + static_cast<double>(i % 99));
      }
      auto operation = make_operation(OpKind::kAlltoall, "alltoall" + std::to_string(factor), {input.view()}, {});
      operation->request.splits = splits;
      run_operation(engine, operation);
      REQUIRE(operation->result.arrays.size() == 1);
      bool right = true;
      at = 0;
      for (int from = 0; from < size; ++from) {
        CHECK_EQ(operation->result.received_splits.at(static_cast<size_t>(from)), rows_between(from, rank));
        for (int64_t i = 0; i < rows_between(from, rank) * 2; ++i) {
          const double wanted = from * 1000.0 + rank * 100.0 + static_cast<double>(i % 99);
          right = right && element(DType::kInt64, operation->result.arrays[0].data.get(), at++) == wanted;
        }
      }
      CHECK(right);
      CHECK(operation->result.arrays[0].shape == (Shape{at / 2, 2}));
    }
  });
}

TEST("engine: alltoall without splits divides evenly") {
  in_worlds([](int size, int rank, Engine& engine) {
    Array input(DType::kUInt8, {size * 3});
    for (int64_t i = 0; i < input.count(); ++i) {
      const int64_t to = i / 3;
      input.set(i, static_cast<double>(int64_t{16} * rank + to));
    }
    auto operation = make_operation(OpKind::kAlltoall, "even", {input.view()}, {});
    run_operation(engine, operation);
    for (int64_t i = 0; i < size * 3; ++i) {
      const int64_t from = i / 3;
      CHECK_EQ(element(DType::kUInt8, operation->result.arrays.at(0).data.get(), i),
               static_cast<double>(from * 16 + rank));
    }
  });
}

TEST("engine: reducescatter, also of fewer rows than ranks") {
  in_worlds([](int size, int rank, Engine& engine) {
    for (const int64_t rows : {int64_t{0}, int64_t{1}, int64_t{2}, int64_t{7}, int64_t{3001}}) {
      for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAverage}) {
        const Range share = share_of(rows, rank, size);
        Array input = samples(DType::kFloat32, op, rank, {rows, 3});
        Array output(DType::kFloat32, {share.size(), 3});
        auto operation = make_operation(OpKind::kReducescatter, label("scatter", DType::kFloat32, op, rows),
                                        {input.view()}, {output.view()});
        operation->request.reduce_op = op;
        run_operation(engine, operation);
        check_reduced(output, op, size, op == ReduceOp::kAverage ? 1.0 / size : 1.0, share.begin * 3);
      }
    }
  });
}

TEST("engine: broadcast from every root, of several tensors, in place and not") {
  in_worlds([](int size, int rank, Engine& engine) {
    for (int root = 0; root < size; ++root) {
      Array small = samples(DType::kBool, ReduceOp::kMax, rank, {3});
      Array large = samples(DType::kFloat64, ReduceOp::kMax, rank, {9000});
      Array large_output(DType::kFloat64, {9000});
      auto operation = make_operation(OpKind::kBroadcast, "root" + std::to_string(root), {small.view(), large.view()},
                                      {small.view(), large_output.view()});
      operation->request.root = root;
      operation->request.reduce_op = ReduceOp::kAverage;  // means nothing here, and must do nothing
      run_operation(engine, operation);
      CHECK(small.bytes() == samples(DType::kBool, ReduceOp::kMax, root, {3}).bytes());
      CHECK(large_output.bytes() == samples(DType::kFloat64, ReduceOp::kMax, root, {9000}).bytes());
    }
  });
}

// Sums of random numbers depend on their order: all ranks must see the same bits, in every run.
TEST("engine: results are bit-equal on all ranks") {
  for (const Wire wire : kWires) {
    for (const int64_t count : {int64_t{900}, int64_t{70'001}}) {
      const int size = 5;
      World world(size, {}, wire);
      std::vector<Array> outputs;
      for (int rank = 0; rank < size; ++rank) outputs.emplace_back(DType::kFloat32, Shape{count});
      world.run([&](int rank) {
        Array input(DType::kFloat32, {count});
        for (int64_t i = 0; i < count; ++i) input.set(i, std::sin(static_cast<double>(i * 17 + rank * 1009)) * 1e3);
        Array& output = outputs[static_cast<size_t>(rank)];
        run_operation(world.engine(rank), make_allreduce("x", {input.view()}, {output.view()}, ReduceOp::kAverage));
        Array again(DType::kFloat32, {count});
        run_operation(world.engine(rank), make_allreduce("y", {input.view()}, {again.view()}, ReduceOp::kAverage));
        CHECK(again.bytes() == output.bytes());
      });
      for (const Array& output : outputs) CHECK(output.bytes() == outputs[0].bytes());
    }
  }
}

}  // namespace
}  // namespace hvd::testing
