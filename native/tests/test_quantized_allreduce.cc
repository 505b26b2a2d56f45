// Quantized allreduces of ranks on three hosts: every rank has the same bits, whatever travels together, and what does
// not arrive is left behind.
#include <numeric>

#include "testing/array.h"
#include "testing/check.h"
#include "testing/log.h"
#include "tests/test_backend_world.h"

namespace hvd::testing {
namespace {

constexpr Quantization kFormats[] = {Quantization::kInt8, Quantization::kFp8E4M3, Quantization::kFp8E5M2};
const std::vector<size_t> kSizes{1, 700, 256, 9001, 3, 5000};
using Composition = std::vector<std::vector<size_t>>;
const std::vector<Composition> kWays{{{0}, {1}, {2}, {3}, {4}, {5}}, {{0, 1, 2, 3, 4, 5}}, {{5, 3, 0}, {4, 1, 2}}};

struct RankData {
  Tensors<float> tensors;
  std::vector<std::vector<float>> residuals;
};

std::vector<RankData> random_data(int size) {
  Random random;
  std::vector<RankData> all(static_cast<size_t>(size));
  for (RankData& data : all) {
    for (const size_t count : kSizes) {
      std::vector<float> values(count);
      for (float& value : values) value = static_cast<float>(random.uniform() - 0.5);
      data.tensors.add(std::move(values));
      data.residuals.emplace_back(count, 0.0F);
    }
  }
  return all;
}

void reduce_all(BackendWorld& world, std::vector<RankData>& all, Quantization format, const Composition& way,
                uint32_t& sequence) {
  for (const std::vector<size_t>& which : way) {
    std::vector<BackendWorld::Executions> executions(all.size());
    for (size_t rank = 0; rank < all.size(); ++rank) {
      Batch batch = world.batch_of(static_cast<int>(rank), DType::kFloat32, sequence);
      batch.quantization = format;
      batch.divisor = world.size();
      all[rank].tensors.put_into(batch, which);
      for (const size_t i : which) batch.residuals.push_back(Tensors<float>::extent_of(all[rank].residuals[i]));
      executions[rank].push_back(
          world.backend(static_cast<int>(rank)).execute(Collective::kAllreduce, std::move(batch)));
    }
    REQUIRE(world.run(executions));
    ++sequence;
  }
}

// Over all ranks: what was given is what has arrived and what is left.
void check_nothing_is_lost(const std::vector<RankData>& before, const std::vector<RankData>& after) {
  for (size_t tensor = 0; tensor < kSizes.size(); ++tensor) {
    for (size_t i = 0; i < kSizes[tensor]; ++i) {
      double given = 0;
      double left = 0;
      for (size_t rank = 0; rank < before.size(); ++rank) {
        given += double{before[rank].tensors.inputs[tensor][i]} + before[rank].residuals[tensor][i];
        left += after[rank].residuals[tensor][i];
      }
      const double arrived = double{after[0].tensors.outputs[tensor][i]} * static_cast<double>(before.size());
      if (std::abs(given - arrived - left) < 1e-5) continue;
      report(__FILE__, __LINE__,
             "element " + std::to_string(i) + " of tensor " + std::to_string(tensor) + ": " + std::to_string(given) +
                 " was given, " + std::to_string(arrived) + " arrived, " + std::to_string(left) + " is left");
      return;
    }
  }
}

}  // namespace

TEST("quantized allreduce: the same bits on all ranks, whatever travels together, and nothing is lost") {
  for (const Wire wire : {Wire::kHosts, Wire::kTinySockets, Wire::kTcp}) {
    for (const int size : {2, 3, 5, 7}) {
      if (kSanitized && size != 5) continue;
      BackendWorld world(size, wire, true);
      uint32_t sequence = 0;
      for (const Quantization format : kFormats) {
        std::vector<RankData> first;
        for (const Composition& way : kWays) {
          std::vector<RankData> all = random_data(size);
          for (int round = 0; round < 2; ++round) {
            const std::vector<RankData> before = all;
            reduce_all(world, all, format, way, sequence);
            check_nothing_is_lost(before, all);
          }
          if (first.empty()) first = all;
          for (const RankData& data : all) {
            for (size_t i = 0; i < kSizes.size(); ++i) {
              CHECK(same_bits(data.tensors.outputs[i], first[0].tensors.outputs[i]));
            }
          }
        }
      }
    }
  }
}

TEST("quantized allreduce: on one host nothing is rounded") {
  BackendWorld world(3, Wire::kMemory);
  uint32_t sequence = 0;
  std::vector<RankData> all = random_data(3);
  const std::vector<RankData> before = all;
  reduce_all(world, all, Quantization::kInt8, kWays[1], sequence);
  for (size_t i = 0; i < kSizes[3]; ++i) {
    const float sum = before[0].tensors.inputs[3][i] + before[1].tensors.inputs[3][i] + before[2].tensors.inputs[3][i];
    CHECK_EQ(all[2].tensors.outputs[3][i], sum / 3);
  }
}

TEST("quantized allreduce: NaN and infinity reach all ranks, and leave no trace in what is left") {
  BackendWorld world(5, Wire::kHosts);
  uint32_t sequence = 0;
  std::vector<RankData> all = random_data(5);
  all[1].tensors.inputs[1][300] = std::numeric_limits<float>::quiet_NaN();
  all[4].tensors.inputs[1][10] = -std::numeric_limits<float>::infinity();
  reduce_all(world, all, Quantization::kInt8, kWays[1], sequence);
  for (const RankData& data : all) {
    for (size_t i = 0; i < kSizes[1]; ++i) {
      const float value = data.tensors.outputs[1][i];
      CHECK(i == 300  ? std::isnan(value)
            : i == 10 ? value == -std::numeric_limits<float>::infinity()
                      : std::isfinite(value));
      CHECK(std::isfinite(data.residuals[1][i]));
    }
  }
}

TEST("quantized allreduce: ranks that ask for other compressions are told which") {
  World world(3, {}, Wire::kHosts);
  world.run([&](int rank) {
    std::vector<float> values(1000, 1.0F);
    auto operation = make_allreduce("x", {view(values)}, {view(values)});
    operation->request.quantization = rank == 1 ? Quantization::kFp8E4M3 : Quantization::kInt8;
    try {
      run_operation(world.engine(rank), operation);
      CHECK(false);
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::kMismatch);
      const std::string text = error.what();
      CHECK(text.find("compressions between hosts") != std::string::npos);
      CHECK(text.find("int8 between hosts") != std::string::npos);
      CHECK(text.find("fp8 between hosts") != std::string::npos);
    }
  });
}

TEST(
    "quantized allreduce: the engine chooses for a process set, by the speed of the links that all know, and says it") {
  for (const double bytes_per_s : {1.25e7, 1.25e10, 0.0}) {
    Log log;
    EngineOptions options;
    options.log = log.sink();
    options.plans.costs.link_bytes_per_s = {bytes_per_s, bytes_per_s, bytes_per_s};
    World world(3, options, Wire::kHosts);
    const bool slow = bytes_per_s == 1.25e7;
    world.run([&](int rank) {
      Engine& engine = world.engine(rank);
      CHECK(engine.automatic_quantization(0) == (slow ? Quantization::kInt8 : Quantization::kNone));
      for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax}) {
        std::vector<float> values{1.0F, 0.3F};
        std::vector<float> residuals{0.0F, 0.0F};
        auto operation = make_allreduce("x", {view(values)}, {view(values)}, op);
        operation->request.quantization = Quantization::kAuto;
        operation->request.residuals = {view(residuals)};
        run_operation(engine, operation);
        const bool rounds = slow && op == ReduceOp::kSum;
        CHECK_EQ(values[1] == (op == ReduceOp::kSum ? 0.3F + 0.3F + 0.3F : 0.3F), !rounds);
        const bool is_left = residuals[1] != 0.0F;
        if (!rounds) CHECK(!is_left);
      }
    });
    const std::string said = log.wait_for_line();
    CHECK_EQ(log.size(), size_t{1});
    CHECK(said.find(slow ? "sends int8 between hosts: 3 hosts at 100 Mbit/s"
                    : bytes_per_s > 0
                        ? "compresses nothing: 3 hosts at 100.0 Gbit/s"
                        : "the speed of the network between the hosts is not known") != std::string::npos);
  }
}

TEST("quantized allreduce: the choice is that of a process set, and of the engine's own transport") {
  EngineOptions options;
  options.plans.costs.link_bytes_per_s = {1.25e6, 1.25e6, 1.25e6};
  World world(4, options, Wire::kHosts);  // ranks 0 and 3 share a host
  world.run([&](int rank) {
    const auto add = make_operation(OpKind::kAddProcessSet, "process_set.change", {}, {});
    add->request.ranks = {0, 3};
    run_operation(world.engine(rank), add);
    CHECK(world.engine(rank).automatic_quantization(0) == Quantization::kInt8);
    if (rank % 3 == 0) {
      CHECK(world.engine(rank).automatic_quantization(add->result.new_process_set) == Quantization::kNone);
      return;
    }
    try {
      static_cast<void>(world.engine(rank).automatic_quantization(add->result.new_process_set));
      CHECK(false);
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::kUsage);
    }
  });
  World mpi(2, options, Wire::kMpi);
  mpi.run([&](int rank) { CHECK(mpi.engine(rank).automatic_quantization(0) == Quantization::kNone); });
}

TEST("quantized allreduce: fused, joined and of other dtypes") {
  World world(5, {}, Wire::kHosts);
  world.run([&](int rank) {
    Engine& engine = world.engine(rank);
    if (rank == 3) {
      run_operation(engine, make_operation(OpKind::kJoin, kJoinName, {}, {}));
      return;
    }
    for (const DType dtype : {DType::kFloat16, DType::kBFloat16, DType::kFloat64, DType::kInt32}) {
      Array values(dtype, {3000});
      for (int64_t i = 0; i < 3000; ++i) values.set(i, static_cast<double>(i % 3) - 1.0);
      auto operation = make_allreduce(std::string(name_of(dtype)), {values.view()}, {values.view()});
      operation->request.quantization = Quantization::kInt8;
      run_operation(engine, operation);
      for (int64_t i = 0; i < 3000; ++i) CHECK_EQ(values.get(i), 4 * (static_cast<double>(i % 3) - 1.0));
    }
    run_operation(engine, make_operation(OpKind::kJoin, kJoinName, {}, {}));
  });
}

TEST("quantized allreduce: what cannot be quantized is refused") {
  World world(2, {}, Wire::kSockets);
  world.run([&](int rank) {
    std::vector<float> values(8, 1.0F);
    std::vector<double> wide(8, 1.0);
    for (const int wrong : {0, 1, 2}) {
      auto operation =
          make_allreduce("x", {view(values)}, {view(values)}, wrong == 0 ? ReduceOp::kMax : ReduceOp::kSum);
      operation->request.quantization = wrong == 1 ? Quantization::kNone : Quantization::kInt8;
      if (wrong == 1) operation->request.residuals = {view(values)};
      if (wrong == 2) operation->request.residuals = {view(wide)};
      try {
        run_operation(world.engine(rank), operation);
        CHECK(false);
      } catch (const Error& error) {
        CHECK(error.kind() == (wrong == 0 ? ErrorKind::kUnsupported : ErrorKind::kUsage));
      }
    }
  });
}

}  // namespace hvd::testing
