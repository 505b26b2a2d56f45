#include "tests/test_engine_gpu.h"

#include <cmath>

namespace hvd::testing {
namespace {

constexpr Gpus kBoth[] = {Gpus::kOurs, Gpus::kShared};
constexpr int64_t kCount = 3000;  // several chunks of the staged path

std::shared_ptr<Operation> reduction(const std::string& name, const GpuTensor& tensor, ReduceOp op = ReduceOp::kSum) {
  return make_allreduce(name, {tensor.view()}, {tensor.view()}, op);
}

TEST("engine gpu: every reduction of every kind of number, on NCCL and through host memory") {
  for (const Gpus gpus : kBoth) {
    for (const int size : {2, 3}) {
      GpuWorld world(size, gpus);
      world.ranks().run([&](int rank) {
        for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kInt16, DType::kInt64, DType::kBool}) {
          for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
            const GpuTensor tensor = world.tensor(rank, samples(dtype, op, rank, {kCount}));
            world.run_operation(rank, reduction(std::string(name_of(dtype)) + std::string(name_of(op)), tensor, op));
            for (const int64_t at : {int64_t{0}, kCount / 2, kCount - 1}) {
              CHECK_EQ(tensor.get(at), reduced(dtype, op, size, at));
            }
          }
        }
      });
      const EngineStatistics numbers = world.engine(0).statistics();
      CHECK_EQ(numbers.gpu_batches, 20U);
      CHECK_EQ(numbers.nccl_batches, gpus == Gpus::kOurs ? 16U : 0U);  // all but int16
      CHECK_EQ(world.end(), "");
    }
  }
}

TEST("engine gpu: averages, factors and weights") {
  for (const Gpus gpus : kBoth) {
    GpuWorld world(2, gpus);
    world.ranks().run([&](int rank) {
      const auto value = [&](const std::string& name, ReduceOp op, double prescale, double postscale,
                             std::optional<double> weight, DType dtype, int64_t count = kCount) {
        const double without_weight = rank == 0 ? NAN : INFINITY;
        const GpuTensor tensor = world.tensor(rank, dtype, count, weight == 0.0 ? without_weight : (rank == 0 ? 8 : 4));
        auto operation = reduction(name, tensor, op);
        operation->request.prescale = prescale;
        operation->request.postscale = postscale;
        operation->request.weight = weight;
        world.run_operation(rank, operation);
        return tensor.get(count - 1);
      };
      const auto average = ReduceOp::kAverage;
      CHECK_EQ(value("average", average, 1, 1, {}, DType::kFloat32), 6.0);
      CHECK_EQ(value("half", average, 1, 1, {}, DType::kFloat16), 6.0);
      CHECK_EQ(value("factors", average, 0.5, 4, {}, DType::kFloat64), 12.0);
      CHECK_EQ(value("integers", ReduceOp::kSum, 2, 1, {}, DType::kInt32), 24.0);
      CHECK_EQ(value("weights", average, 1, 1, rank == 0 ? 1.0 : 3.0, DType::kFloat32), 5.0);
      for (const DType dtype : {DType::kFloat16, DType::kBFloat16, DType::kFloat32, DType::kFloat64}) {
        for (const int64_t count : {int64_t{2}, kCount}) {
          CHECK_EQ(value("one weight", average, 1, 1, rank == 0 ? 1.0 : 0.0, dtype, count), 8.0);
          CHECK_EQ(value("another", average, 1, 2, rank == 0 ? 0.0 : 0.5, dtype, count), 8.0);
        }
      }
      CHECK_EQ(value("adasum", ReduceOp::kAdasum, 1, 1, {}, DType::kFloat32), 6.0);
    });
    CHECK_EQ(world.end(), "");
  }
}

TEST("engine gpu: rows are gathered, exchanged, scattered and broadcast") {
  for (const Gpus gpus : kBoth) {
    for (const int size : {2, 3}) {
      GpuWorld world(size, gpus);
      world.ranks().run([&](int rank) {
        const GpuTensor mine = world.tensor(rank, DType::kInt32, rank + 1, rank);
        auto gather = make_operation(OpKind::kAllgather, "gather", {mine.view()}, {});
        world.run_operation(rank, gather);
        CHECK_EQ(gather->result.arrays.at(0).device(), world.device_of(rank));
        std::vector<double> expected;
        for (int other = 0; other < size; ++other)
          expected.insert(expected.end(), static_cast<size_t>(other) + 1, other);
        CHECK(world.result(rank, gather->result.arrays[0]) == expected);

        const GpuTensor parts = world.tensor(rank, DType::kFloat32, size, rank);
        auto exchange = make_operation(OpKind::kAlltoall, "exchange", {parts.view()}, {});
        world.run_operation(rank, exchange);
        std::vector<double> from_each;
        for (int other = 0; other < size; ++other) from_each.push_back(other);
        CHECK(world.result(rank, exchange->result.arrays.at(0)) == from_each);

        const GpuTensor input = world.tensor(rank, DType::kFloat32, 7, 1);
        const int64_t rows = 7 / size + (rank < 7 % size ? 1 : 0);
        const GpuTensor output = world.tensor(rank, DType::kFloat32, rows, 0);
        world.run_operation(rank, make_operation(OpKind::kReducescatter, "scatter", {input.view()}, {output.view()}));
        CHECK_EQ(output.get(rows - 1), size);

        const GpuTensor state = world.tensor(rank, DType::kFloat64, kCount, rank);
        auto broadcast = make_operation(OpKind::kBroadcast, "state", {state.view()}, {state.view()});
        broadcast->request.root = size - 1;
        world.run_operation(rank, broadcast);
        CHECK_EQ(state.get(kCount - 1), size - 1);
      });
      CHECK_EQ(world.end(), "");
    }
  }
}

TEST("engine gpu: tensors without elements, and results without rows") {
  for (const Gpus gpus : kBoth) {
    GpuWorld world(2, gpus);
    world.ranks().run([&](int rank) {
      const int device = world.device_of(rank);
      const Buffer none{nullptr, DType::kFloat32, {0, 3}, device, nullptr};
      world.run_operation(rank, make_allreduce("empty", {none}, {none}));
      auto gather = make_operation(OpKind::kAllgather, "rows", {none}, {});
      world.run_operation(rank, gather);
      CHECK(gather->result.arrays.at(0).shape == Shape({0, 3}));
      CHECK(GpuWorld::settles(*gather));
      const GpuTensor some = world.tensor(rank, DType::kFloat32, 4, 2);
      auto group = make_allreduce("group", {none, some.view()}, {none, some.view()});
      world.run_operation(rank, group);
      CHECK_EQ(some.get(3), 4.0);
    });
    CHECK_EQ(world.end(), "");
  }
}

TEST("engine gpu: groups, fused tensors and operations of the CPU are in flight together") {
  for (const Gpus gpus : kBoth) {
    GpuWorld world(3, gpus);
    world.ranks().run([&](int rank) {
      for (int step = 0; step < 5; ++step) {
        std::vector<GpuTensor> tensors;
        std::vector<std::vector<float>> on_cpu(10, std::vector<float>(500, 1.0F));
        std::vector<std::shared_ptr<Operation>> operations;
        for (int i = 0; i < 10; ++i) {
          const int which = rank == 1 ? 9 - i : i;  // ranks submit in different orders
          const std::string name = std::to_string(which);
          tensors.push_back(world.tensor(rank, i % 2 == 0 ? DType::kFloat32 : DType::kFloat32, kCount, which + 1));
          operations.push_back(reduction("gpu." + name, tensors.back()));
          world.engine(rank).submit(operations.back());
          auto& values = on_cpu[static_cast<size_t>(which)];
          operations.push_back(make_allreduce("cpu." + name, {view(values)}, {view(values)}));
          world.engine(rank).submit(operations.back());
        }
        const GpuTensor a = world.tensor(rank, DType::kFloat32, 10, 1);
        const GpuTensor b = world.tensor(rank, DType::kInt32, 10, 2);
        operations.push_back(make_allreduce("group", {a.view(), b.view()}, {a.view(), b.view()}));
        world.engine(rank).submit(operations.back());
        for (const auto& operation : operations) world.wait(rank, operation);
        for (int i = 0; i < 10; ++i) {
          CHECK_EQ(tensors[static_cast<size_t>(i)].get(kCount - 1), 3.0 * ((rank == 1 ? 9 - i : i) + 1));
          CHECK_EQ(on_cpu[static_cast<size_t>(i)].back(), 3.0F);
        }
        CHECK_EQ(a.get(9), 3.0);
        CHECK_EQ(b.get(9), 6.0);
      }
    });
    CHECK_EQ(world.end(), "");
  }
}

TEST("engine gpu: the host does not wait for what the caller's stream still has to do, and the device does") {
  for (const Gpus gpus : kBoth) {
    GpuWorld world(2, gpus);
    world.ranks().run([&](int rank) {  // the agreement, before streams stand still
      const GpuTensor first = world.tensor(rank, DType::kFloat32, 10, 1);
      world.run_operation(rank, reduction("first", first));
    });
    std::vector<device::Stream> streams;
    std::vector<GpuTensor> tensors;
    for (int rank = 0; rank < 2; ++rank) {
      streams.push_back(world.cuda().gpu(world.device_of(rank))->make_stream(false));
      tensors.push_back(world.tensor(rank, DType::kFloat32, kCount, 1));
      CHECK_EQ(world.cuda().hold_stream(streams.back()), 1);
    }
    std::vector<std::shared_ptr<Operation>> operations(2);
    world.ranks().run([&](int rank) {
      const auto at = static_cast<size_t>(rank);
      const auto gpu = world.cuda().gpu(world.device_of(rank));
      const GpuTensor& tensor = tensors[at];
      gpu->fill(tensor.view().data, 0, kCount * sizeof(float), streams[at]);
      Buffer in_stream = tensor.view();
      in_stream.stream = streams[at];
      operations[at] = make_allreduce("x", {in_stream}, {in_stream});
      submit_to(world.engine(rank), operations[at], true);
      if (gpus == Gpus::kOurs) {  // NCCL has it, and the callers go on
        CHECK(world.engine(rank).wait(*operations[at], std::chrono::seconds(30)));
        CHECK(operations[at]->done());
      }
      CHECK(!operations[at]->settled());
    });
    for (const device::Stream stream : streams) world.cuda().release_stream(stream);
    world.ranks().run([&](int rank) {
      world.wait(rank, operations[static_cast<size_t>(rank)]);
      CHECK_EQ(tensors[static_cast<size_t>(rank)].get(0), 0.0);
    });
    for (int rank = 0; rank < 2; ++rank) {
      world.cuda().gpu(world.device_of(rank))->destroy_stream(streams[static_cast<size_t>(rank)]);
    }
    CHECK_EQ(world.end(), "");
  }
}

TEST("engine gpu: process sets come and go, each with its own agreement") {
  for (const Gpus gpus : kBoth) {
    GpuWorld world(3, gpus);
    world.ranks().run([&](int rank) {
      for (int round = 0; round < 3; ++round) {
        auto add = make_operation(OpKind::kAddProcessSet, "process_set.change", {}, {});
        add->request.ranks = {0, 2};
        testing::run_operation(world.engine(rank), add);
        const uint32_t set = add->result.new_process_set;
        const GpuTensor everybody = world.tensor(rank, DType::kFloat32, kCount, 1);
        const auto of_all = reduction("of all", everybody);
        world.engine(rank).submit(of_all);
        if (rank != 1) {
          const GpuTensor tensor = world.tensor(rank, DType::kFloat32, kCount, 1);
          auto operation = reduction("of two", tensor);
          operation->request.process_set = set;
          world.run_operation(rank, operation);
          CHECK_EQ(tensor.get(kCount - 1), 2.0);
        }
        world.wait(rank, of_all);
        CHECK_EQ(everybody.get(kCount - 1), 3.0);
        auto remove = make_operation(OpKind::kRemoveProcessSet, "process_set.change", {}, {});
        remove->request.ranks = {set};
        testing::run_operation(world.engine(rank), remove);
      }
    });
    CHECK_EQ(world.end(), "");
  }
}

int join(Engine& engine, int device = kCpuDevice) {
  auto operation = make_operation(OpKind::kJoin, kJoinName, {}, {});
  operation->request.device = device;
  run_operation(engine, operation);
  return operation->result.last_joined;
}

TEST("engine gpu: a rank that has joined takes part with neutral memory on its device") {
  for (const Gpus gpus : kBoth) {
    GpuWorld world(3, gpus);
    world.ranks().run([&](int rank) {
      Engine& engine = world.engine(rank);
      if (rank != 1) {
        for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
          const GpuTensor tensor = world.tensor(rank, DType::kFloat32, kCount, rank + 2);
          auto operation = reduction("x" + std::string(name_of(op)), tensor, op);
          operation->request.prescale = op == ReduceOp::kSum ? 2.0 : 1.0;
          world.run_operation(rank, operation);
          const double expected = op == ReduceOp::kSum ? 12 : op == ReduceOp::kMin ? 2 : op == ReduceOp::kMax ? 4 : 8;
          CHECK_EQ(tensor.get(kCount - 1), expected);
        }
        const GpuTensor rows = world.tensor(rank, DType::kInt32, 2, rank);
        auto gather = make_operation(OpKind::kAllgather, "gather", {rows.view()}, {});
        world.run_operation(rank, gather);
        CHECK(world.result(rank, gather->result.arrays.at(0)) == std::vector<double>({0, 0, 2, 2}));
      }
      CHECK(join(engine, world.device_of(rank)) != 1);
      const GpuTensor again = world.tensor(rank, DType::kFloat32, kCount, 1);
      world.run_operation(rank, reduction("again", again));
      CHECK_EQ(again.get(0), 3.0);
      if (rank == 2) {  // the device that the others used last
        const GpuTensor more = world.tensor(rank, DType::kFloat32, kCount, 1);
        world.run_operation(rank, reduction("more", more));
        CHECK_EQ(more.get(0), 1.0);
      }
      join(engine);
    });
    CHECK_EQ(world.end(), "");
  }
}

}  // namespace
}  // namespace hvd::testing
