// Collectives of NCCL on ranks that are threads, over fakes of the driver and of NCCL whose device memory faults when
// the host touches it.
#include <algorithm>
#include <atomic>
#include <map>
#include <numeric>

#include "testing/array.h"
#include "testing/check.h"
#include "testing/fake_nccl.h"

namespace hvd::testing {
namespace {

constexpr DType kServed[] = {DType::kBool,     DType::kUInt8,   DType::kInt8,   DType::kUInt32,
                             DType::kInt32,    DType::kUInt64,  DType::kInt64,  DType::kFloat16,
                             DType::kBFloat16, DType::kFloat32, DType::kFloat64};
constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct};

Extent extent(const DeviceBytes& bytes, int64_t count) { return {bytes.data(), count}; }

// A tensor of samples on the device of a rank.
struct Tensor {
  Tensor(NcclWorld& world, int rank, DType dtype, ReduceOp op, int64_t elements)
      : count(elements), given(samples(dtype, op, rank, {elements})), memory(world.on_device(rank, given.bytes())) {}
  [[nodiscard]] Extent extent() const { return {memory.data(), count}; }

  int64_t count;
  Array given;
  DeviceBytes memory;
};

void check_values(const DeviceBytes& memory, DType dtype, int64_t count,
                  const std::function<double(int64_t)>& expected) {
  const std::vector<std::byte> values = memory.values();
  int64_t num_wrong = 0;
  for (int64_t i = 0; i < count; ++i) num_wrong += element(dtype, values.data(), i) == expected(i) ? 0 : 1;
  CHECK_EQ(num_wrong, 0);
}

// Three tensors in one batch, of which one is empty and one is reduced in place.
void check_allreduce(NcclWorld& world, int rank, DType dtype, ReduceOp op) {
  const Tensor first(world, rank, dtype, op, 37);
  const Tensor none(world, rank, dtype, op, 0);
  const Tensor second(world, rank, dtype, op, 5000);
  const DeviceBytes output = world.on_device(rank, std::vector<std::byte>(37 * size_of(dtype)));
  Batch batch = world.batch(rank, dtype, op);
  batch.inputs = {first.extent(), none.extent(), second.extent()};
  batch.outputs = {extent(output, 37), none.extent(), second.extent()};
  const auto execution = world.rank(rank).backend().execute(Collective::kAllreduce, std::move(batch));
  world.rank(rank).finish(*execution);
  const auto expected = [&](int64_t i) { return reduced(dtype, op, world.size(), i); };
  check_values(output, dtype, 37, expected);
  check_values(second.memory, dtype, 5000, expected);
}

TEST("nccl: every reduction of every type") {
  for (const int size : {1, 2, 3}) {
    NcclWorld world(size);
    world.add_communicators();
    world.run([&](int rank) {
      for (const DType dtype : kServed) {
        for (const ReduceOp op : kOps) check_allreduce(world, rank, dtype, op);
      }
    });
    CHECK_EQ(world.nccl().calls("ncclCommInitRankConfig"), size == 1 ? 0 : size);
    CHECK_EQ(world.end(), "");
  }
}

TEST("nccl: a rank that is alone can be made to call NCCL") {
  NcclWorld world(1, {.calls_alone = true});
  world.add_communicators();
  for (const DType dtype : kServed) check_allreduce(world, 0, dtype, ReduceOp::kSum);
  CHECK_EQ(world.nccl().calls("ncclCommInitRankConfig"), 1);
  CHECK(world.nccl().calls("ncclAllReduce") > 0);
  CHECK_EQ(world.end(), "");
}

// prescale of each of two ranks; postscale, and what an average divides by.
void check_factors(std::vector<double> prescales, double postscale, int divisor) {
  NcclWorld world(2);
  world.add_communicators();
  world.run([&](int rank) {
    for (const DType dtype : {DType::kFloat16, DType::kBFloat16, DType::kFloat32, DType::kFloat64}) {
      const Tensor tensor(world, rank, dtype, ReduceOp::kSum, 100);
      Batch batch = world.batch(rank, dtype);
      batch.prescale = prescales[static_cast<size_t>(rank)];
      batch.prescaled = prescales[0] != 1.0 || prescales[1] != 1.0;
      batch.postscale = postscale;
      batch.divisor = divisor;
      batch.inputs = batch.outputs = {tensor.extent()};
      REQUIRE(nccl::NcclBackend::serves(batch));
      const auto execution = world.rank(rank).backend().execute(Collective::kAllreduce, std::move(batch));
      world.rank(rank).finish(*execution);
      check_values(tensor.memory, dtype, 100, [&](int64_t i) {
        double sum = 0;
        for (int r = 0; r < 2; ++r) sum += sample(dtype, ReduceOp::kSum, r, i) * prescales[static_cast<size_t>(r)];
        return sum / divisor * postscale;
      });
    }
  });
  CHECK_EQ(world.end(), "");
}

TEST("nccl: averages and factors, also of one rank only") {
  check_factors({1.0, 1.0}, 1.0, 2);
  check_factors({1.0, 1.0}, 2.0, 1);
  check_factors({0.25, 0.25}, 8.0, 1);
  check_factors({0.25, 0.25}, 8.0, 2);
  check_factors({1.0, 2.0}, 1.0, 1);  // as if the first had joined
  check_factors({0.0, 0.5}, 1.0, 2);
}

TEST("nccl: equal and unequal shares are reduced and scattered") {
  const std::map<int, std::vector<std::vector<int64_t>>> cases = {
      {1, {{9}}}, {2, {{4, 4}, {5, 4}, {0, 3}, {0, 0}}}, {3, {{3, 3, 3}, {7, 0, 2}, {1, 1, 0}}}};
  for (const auto& [size, all_counts] : cases) {
    NcclWorld world(size);
    world.add_communicators();
    world.run([&, &all_counts = all_counts](int rank) {
      for (const std::vector<int64_t>& counts : all_counts) {
        const auto me = counts.begin() + rank;
        const int64_t before = std::accumulate(counts.begin(), me, int64_t{0});
        const Tensor input(world, rank, DType::kInt32, ReduceOp::kSum,
                           std::accumulate(counts.begin(), counts.end(), int64_t{0}));
        const DeviceBytes output = world.on_device(rank, std::vector<std::byte>(static_cast<size_t>(*me) * 4));
        Batch batch = world.batch(rank, DType::kInt32);
        batch.inputs = {input.extent()};
        batch.outputs = {extent(output, *me)};
        batch.counts = counts;
        const auto execution = world.rank(rank).backend().execute(Collective::kReducescatter, std::move(batch));
        world.rank(rank).finish(*execution);
        check_values(output, DType::kInt32, *me,
                     [&](int64_t i) { return reduced(DType::kInt32, ReduceOp::kSum, world.size(), before + i); });
      }
    });
    CHECK_EQ(world.end(), "");
  }
}

TEST("nccl: equal and unequal shares are gathered") {
  const std::map<int, std::vector<std::vector<int64_t>>> cases = {
      {1, {{9}, {0}}}, {2, {{4, 4}, {5, 4}, {0, 3}, {0, 0}}}, {3, {{3, 3, 3}, {7, 0, 2}, {0, 0, 5}}}};
  for (const auto& [size, all_counts] : cases) {
    NcclWorld world(size);
    world.add_communicators();
    world.run([&, &all_counts = all_counts](int rank) {
      for (const std::vector<int64_t>& counts : all_counts) {
        const int64_t total = std::accumulate(counts.begin(), counts.end(), int64_t{0});
        const Tensor input(world, rank, DType::kUInt8, ReduceOp::kSum, counts[static_cast<size_t>(rank)]);
        const DeviceBytes output = world.on_device(rank, std::vector<std::byte>(static_cast<size_t>(total)));
        Batch batch = world.batch(rank, DType::kUInt8);
        batch.inputs = {input.extent()};
        batch.outputs = {extent(output, total)};
        batch.counts = counts;
        const auto execution = world.rank(rank).backend().execute(Collective::kAllgather, std::move(batch));
        world.rank(rank).finish(*execution);
        check_values(output, DType::kUInt8, total, [&](int64_t i) {
          int from = 0;
          while (i >= counts[static_cast<size_t>(from)]) i -= counts[static_cast<size_t>(from++)];
          return sample(DType::kUInt8, ReduceOp::kSum, from, i);
        });
      }
    });
    CHECK_EQ(world.end(), "");
  }
}

TEST("nccl: several tensors are broadcast from any rank") {
  for (const int size : {1, 2, 3}) {
    NcclWorld world(size);
    world.add_communicators();
    world.run([&](int rank) {
      for (int root = 0; root < size; ++root) {
        const Tensor first(world, rank, DType::kUInt8, ReduceOp::kSum, 1000);
        const Tensor none(world, rank, DType::kUInt8, ReduceOp::kSum, 0);
        const Tensor second(world, rank, DType::kUInt8, ReduceOp::kSum, 3);
        Batch batch = world.batch(rank, DType::kUInt8);
        batch.inputs = batch.outputs = {first.extent(), none.extent(), second.extent()};
        batch.root = root;
        const auto execution = world.rank(rank).backend().execute(Collective::kBroadcast, std::move(batch));
        world.rank(rank).finish(*execution);
        const auto expected = [&](int64_t i) { return sample(DType::kUInt8, ReduceOp::kSum, root, i); };
        check_values(first.memory, DType::kUInt8, 1000, expected);
        check_values(second.memory, DType::kUInt8, 3, expected);
      }
    });
    CHECK_EQ(world.end(), "");
  }
}

void check_alltoall(NcclWorld& world, int rank, const std::vector<std::vector<int64_t>>& counts) {
  const auto me = static_cast<size_t>(rank);
  int64_t received = 0;
  for (const auto& row : counts) received += row[me];
  const Tensor input(world, rank, DType::kUInt8, ReduceOp::kSum,
                     std::accumulate(counts[me].begin(), counts[me].end(), int64_t{0}));
  const DeviceBytes output = world.on_device(rank, std::vector<std::byte>(static_cast<size_t>(received)));
  Batch batch = world.batch(rank, DType::kUInt8);
  batch.inputs = {input.extent()};
  batch.outputs = {extent(output, received)};
  batch.splits = counts;
  const auto execution = world.rank(rank).backend().execute(Collective::kAlltoall, std::move(batch));
  world.rank(rank).finish(*execution);
  std::vector<double> expected;
  for (size_t from = 0; from < counts.size(); ++from) {
    int64_t at = std::accumulate(counts[from].begin(), counts[from].begin() + rank, int64_t{0});
    for (int64_t i = 0; i < counts[from][me]; ++i)
      expected.push_back(sample(DType::kUInt8, ReduceOp::kSum, static_cast<int>(from), at++));
  }
  check_values(output, DType::kUInt8, received, [&](int64_t i) { return expected[static_cast<size_t>(i)]; });
}

TEST("nccl: alltoall, also of ranks that give or get nothing") {
  const std::vector<std::vector<std::vector<int64_t>>> cases = {{{4}},
                                                                {{2, 3}, {4, 5}},
                                                                {{0, 3}, {0, 0}},
                                                                {{0, 0}, {0, 0}},
                                                                {{1, 2, 3}, {4, 5, 6}, {7, 8, 9}},
                                                                {{0, 900, 0}, {0, 0, 0}, {5, 0, 70}}};
  for (const auto& counts : cases) {
    NcclWorld world(static_cast<int>(counts.size()));
    world.add_communicators();
    world.run([&](int rank) { check_alltoall(world, rank, counts); });
    CHECK_EQ(world.end(), "");
  }
}

TEST("nccl: callers go on when a batch is on its stream, which waits for what makes the tensors valid") {
  NcclWorld world(2);
  world.add_communicators();
  world.run([&](int rank) {
    NcclRank& me = world.rank(rank);
    const Tensor tensor(world, rank, DType::kFloat32, ReduceOp::kSum, 64);
    const device::Stream callers = me.gpu()->make_stream(false);
    REQUIRE(world.cuda().hold_stream(callers) == 1);
    me.gpu()->fill(tensor.memory.data(), 0, 256, callers);  // what it holds now must not be reduced
    Batch batch = world.batch(rank, DType::kFloat32);
    batch.inputs = batch.outputs = {tensor.extent()};
    batch.ready.push_back(me.gpu()->record(callers));
    const auto execution = me.backend().execute(Collective::kAllreduce, std::move(batch));
    me.advance_until(*execution, [&] { return execution->handed_over(); });
    REQUIRE(execution->finished() != nullptr);
    CHECK(!execution->finished()->reached());
    CHECK(!execution->done());
    CHECK(execution->waits_for(0) && execution->waits_for(1) && !execution->waits_for(2));
    REQUIRE(world.cuda().release_stream(callers) == 1);
    me.finish(*execution);
    CHECK(execution->finished()->reached());
    CHECK(!execution->waits_for(1));
    check_values(tensor.memory, DType::kFloat32, 64, [](int64_t) { return 0.0; });
    me.gpu()->destroy_stream(callers);
  });
  CHECK_EQ(world.end(), "");
}

TEST("nccl: batches of process sets overlap, and each set keeps its order") {
  NcclWorld world(3);
  const std::vector<std::vector<int>> sets = {{0, 1, 2}, {0, 1}, {2, 1}, {0, 2}};
  for (size_t set = 0; set < sets.size(); ++set) world.add_communicators(static_cast<uint32_t>(set), sets[set]);
  world.run([&](int rank) {
    NcclRank& me = world.rank(rank);
    std::vector<Tensor> tensors;
    std::vector<std::unique_ptr<Execution>> executions;
    std::vector<uint32_t> set_of;
    for (int round = 0; round < 10; ++round) {
      for (uint32_t i = 0; i < sets.size(); ++i) {
        const uint32_t set = (i + static_cast<uint32_t>(rank)) % 4;  // sets in another order on each rank
        if (std::find(sets[set].begin(), sets[set].end(), rank) == sets[set].end()) continue;
        const Tensor& tensor = tensors.emplace_back(world, rank, DType::kInt64, ReduceOp::kSum, 100 + round);
        Batch batch = world.batch(rank, DType::kInt64, ReduceOp::kSum, set);
        batch.inputs = batch.outputs = {tensor.extent()};
        executions.push_back(me.backend().execute(Collective::kAllreduce, std::move(batch)));
        set_of.push_back(set);
      }
    }
    for (size_t i = 0; i < executions.size(); ++i) {
      me.finish(*executions[i]);
      check_values(tensors[i].memory, DType::kInt64, tensors[i].count, [&](int64_t at) {
        double sum = 0;
        for (const int member : sets[set_of[i]]) sum += sample(DType::kInt64, ReduceOp::kSum, member, at);
        return sum;
      });
    }
  });
  CHECK_EQ(world.nccl().communicators(), 9);
  world.run([&](int rank) {
    for (uint32_t set = 1; set < sets.size(); ++set) world.rank(rank).backend().remove_process_set(set);
    CHECK(world.rank(rank).backend().has_communicator(0, {0, 1, 2}));
    CHECK(!world.rank(rank).backend().has_communicator(1, {0, 1}));
  });
  CHECK_EQ(world.end(), "");
}

TEST("nccl: while one communicator waits for a rank, another is used") {
  NcclWorld world(2);
  world.add_communicators(0);
  for (int rank = 0; rank < 2; ++rank) {
    if (rank == 0) world.rank(rank).backend().add_communicator(world.spec(1, {0, 1}, rank));
  }
  world.run([&](int rank) { check_allreduce(world, rank, DType::kFloat32, ReduceOp::kSum); });
  world.rank(1).backend().add_communicator(world.spec(1, {0, 1}, 1));
  CHECK_EQ(world.end(), "");
}

}  // namespace
}  // namespace hvd::testing
