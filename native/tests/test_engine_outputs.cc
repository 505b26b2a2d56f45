// Allgathers and alltoalls into memory of the caller.
#include "engine/engine.h"
#include "testing/array.h"
#include "testing/check.h"
#include "testing/world.h"

namespace hvd::testing {
namespace {

constexpr Wire kWires[] = {Wire::kMemory, Wire::kSockets, Wire::kTinySockets, Wire::kHosts, Wire::kTcp, Wire::kMpi};
using Rows = std::vector<int64_t>;

// `count` rows of two values that tell who made them.
std::vector<int32_t> rows_of(int rank, int64_t count, int to = 0) {
  std::vector<int32_t> values(static_cast<size_t>(2 * count));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = rank * 1'000'000 + to * 100'000 + static_cast<int32_t>(i % 9973);
  return values;
}

Buffer rows_view(std::vector<int32_t>& values) { return view(values, {static_cast<int64_t>(values.size() / 2), 2}); }

std::string error_of(Engine& engine, const std::shared_ptr<Operation>& operation) {
  try {
    run_operation(engine, operation);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

void append(std::vector<int32_t>& to, const std::vector<int32_t>& values) {
  to.insert(to.end(), values.begin(), values.end());
}

void gather_into(Engine& engine, const Rows& counts, bool in_place) {
  const auto rank = static_cast<size_t>(engine.rank());
  std::vector<int32_t> expected;
  std::vector<std::vector<int32_t>> parts;
  for (size_t r = 0; r < counts.size(); ++r) {
    append(expected, rows_of(static_cast<int>(r), counts[r]));
    parts.emplace_back(static_cast<size_t>(2 * counts[r]), -1);
  }
  std::vector<int32_t> whole(expected.size(), -1);
  std::vector<int32_t> given = rows_of(engine.rank(), counts[rank]);
  Buffer input = rows_view(given);
  if (in_place) {
    int64_t before = 0;
    for (size_t r = 0; r < rank; ++r) before += counts[r];
    std::copy(given.begin(), given.end(), whole.begin() + 2 * before);
    input.data = reinterpret_cast<std::byte*>(whole.data() + 2 * before);
  }
  auto gather = make_operation(OpKind::kAllgather, "whole", {input}, {rows_view(whole)});
  gather->request.received_splits = counts;
  run_operation(engine, gather);
  CHECK(gather->result.arrays.empty());
  CHECK(whole == expected);
  std::vector<Buffer> outputs;
  for (auto& part : parts) outputs.push_back(rows_view(part));
  run_operation(engine, make_operation(OpKind::kAllgather, "parts", {rows_view(given)}, outputs));
  for (size_t r = 0; r < counts.size(); ++r) CHECK(parts[r] == rows_of(static_cast<int>(r), counts[r]));
}

TEST("engine outputs: two that share memory are refused, as the order of arrival would decide") {
  World world(2);
  world.run([&](int rank) {
    std::vector<int32_t> given = rows_of(rank, 3);
    std::vector<int32_t> memory(12);
    std::vector<int32_t> part(memory.begin(), memory.begin() + 6);
    const Buffer first = rows_view(part);
    for (const size_t offset : {size_t{0}, size_t{4}}) {
      Buffer second = first;
      second.data += offset * sizeof(int32_t);
      const auto gather = make_operation(OpKind::kAllgather, "parts", {rows_view(given)}, {first, second});
      CHECK(contains(error_of(world.engine(rank), gather), "two outputs share memory"));
    }
    Buffer next = rows_view(memory);
    next.shape = {3, 2};
    Buffer after = next;
    after.data += next.bytes();
    run_operation(world.engine(rank), make_operation(OpKind::kAllgather, "beside", {rows_view(given)}, {next, after}));
  });
}

TEST("outputs: allgather into one output, in place, and into one for each rank") {
  for (const Wire wire : kWires) {
    World world(4, {}, wire);
    world.run([&](int rank) {
      for (const Rows& counts : {Rows{1, 0, 3, 2}, Rows{0, 0, 0, 0}, Rows{40'000, 3, 0, 9000}}) {
        gather_into(world.engine(rank), counts, false);
        gather_into(world.engine(rank), counts, true);
      }
    });
  }
}

// From rank r to rank t.
int64_t count_of(int from, int to) { return (from + 2 * to) % 3 == 0 ? 0 : 5000 * from + to + 1; }

TEST("outputs: alltoall from and into one tensor or one for each rank") {
  for (const Wire wire : kWires) {
    World world(3, {}, wire);
    world.run([&](int rank) {
      std::vector<std::vector<int32_t>> sent;
      std::vector<std::vector<int32_t>> received;
      std::vector<int32_t> all_sent;
      std::vector<int32_t> expected;
      Rows splits;
      Rows arriving;
      for (int other = 0; other < 3; ++other) {
        sent.push_back(rows_of(rank, count_of(rank, other), other));
        append(all_sent, sent.back());
        splits.push_back(count_of(rank, other));
        received.emplace_back(static_cast<size_t>(2 * count_of(other, rank)), -1);
        append(expected, rows_of(other, count_of(other, rank), rank));
        arriving.push_back(count_of(other, rank));
      }
      std::vector<Buffer> inputs;
      std::vector<Buffer> outputs;
      for (auto& part : sent) inputs.push_back(rows_view(part));
      for (auto& part : received) outputs.push_back(rows_view(part));
      run_operation(world.engine(rank), make_operation(OpKind::kAlltoall, "lists", inputs, outputs));
      std::vector<int32_t> joined;
      for (const auto& part : received) append(joined, part);
      CHECK(joined == expected);
      std::vector<int32_t> whole(expected.size(), -1);
      auto exchange = make_operation(OpKind::kAlltoall, "whole", {rows_view(all_sent)}, {rows_view(whole)});
      exchange->request.splits = splits;
      exchange->request.received_splits = arriving;
      run_operation(world.engine(rank), exchange);
      CHECK(whole == expected);
      CHECK(exchange->result.received_splits == arriving);
      std::vector<int32_t> own{10 * rank, 10 * rank + 1, 10 * rank + 2};
      run_operation(world.engine(rank), make_operation(OpKind::kAlltoall, "in place", {view(own)}, {view(own)}));
      CHECK(own == std::vector<int32_t>({rank, 10 + rank, 20 + rank}));
    });
  }
}

TEST("outputs: an input in the place of another rank's values is read before these arrive") {
  World world(3);
  world.run([&](int rank) {
    constexpr int64_t kCount = 50'000;
    std::vector<std::vector<int32_t>> parts(3, std::vector<int32_t>(2 * kCount));
    auto& foreign = parts[static_cast<size_t>((rank + 1) % 3)];
    foreign = rows_of(rank, kCount);
    std::vector<Buffer> outputs;
    for (auto& part : parts) outputs.push_back(rows_view(part));
    run_operation(world.engine(rank), make_operation(OpKind::kAllgather, "x", {rows_view(foreign)}, outputs));
    for (int other = 0; other < 3; ++other) CHECK(parts[static_cast<size_t>(other)] == rows_of(other, kCount));
  });
}

TEST("outputs: other numbers of rows than there is memory for are an error on all ranks, and nothing is written") {
  for (const bool cached : {false, true}) {
    World world(3);
    world.run([&](int rank) {
      Engine& engine = world.engine(rank);
      std::vector<int32_t> rows = rows_of(rank, 4);
      std::vector<int32_t> whole(24, -1);
      const auto gather = [&](const Buffer& input) {
        auto operation = make_operation(OpKind::kAllgather, "x", {input}, {rows_view(whole)});
        operation->request.call_site = "train.py:" + std::to_string(rank + 5);
        return operation;
      };
      if (cached) run_operation(engine, gather(rows_view(rows)));
      std::fill(whole.begin(), whole.end(), -1);
      Buffer fewer = rows_view(rows);
      if (rank == 1) fewer.shape = {3, 2};
      const std::string text = error_of(engine, gather(fewer));
      CHECK(contains(text, "rank 0 expects 4 from rank 1, which gives 3"));
      CHECK(contains(text, "rank 1 sent allgather of int32 [3, 2] at train.py:6"));
      CHECK_EQ(whole.front(), -1);
      run_operation(engine, gather(rows_view(rows)));
      CHECK_EQ(whole.back(), 2'000'007);
    });
  }
}

TEST("outputs: received splits without outputs are compared, too") {
  World world(2);
  world.run([&](int rank) {
    std::vector<int32_t> rows = rows_of(rank, 2);
    auto exchange = make_operation(OpKind::kAlltoall, "x", {rows_view(rows)}, {});
    exchange->request.received_splits = rank == 0 ? Rows{0, 0} : Rows{1, 1};
    CHECK(contains(error_of(world.engine(rank), exchange), "rank 0 expects 0 from rank 0, which gives 1"));
  });
}

TEST("outputs: what does not fit is refused before work is spent") {
  World world(2);
  Engine& engine = world.engine(0);
  std::vector<int32_t> rows = rows_of(0, 6);
  std::vector<double> others(12);
  const auto refusal = [&](OpKind kind, std::vector<Buffer> inputs, std::vector<Buffer> outputs, const Rows& received) {
    auto operation = make_operation(kind, "x", std::move(inputs), std::move(outputs));
    if (!received.empty()) operation->request.received_splits = received;
    return error_of(engine, operation);
  };
  std::vector<int32_t> odd(6);
  const Buffer input = rows_view(rows);
  CHECK(contains(refusal(OpKind::kAllgather, {input}, {view(others, {6, 2})}, {}), "one is float64 [6, 2]"));
  CHECK(contains(refusal(OpKind::kAllgather, {input}, {view(others, {6, 2})}, {6, 6}), "one is float64 [6, 2]"));
  CHECK(contains(refusal(OpKind::kAllgather, {input}, {view(rows, {4, 3})}, {}), "one is int32 [4, 3]"));
  CHECK(contains(refusal(OpKind::kAllgather, {input}, {rows_view(odd)}, {}),
                 "must be a multiple of the number of ranks"));
  CHECK(contains(refusal(OpKind::kAllgather, {input}, {rows_view(odd)}, {1, 1}), "do not divide the rows"));
  CHECK(contains(refusal(OpKind::kAllgather, {input}, {rows_view(odd)}, {3}), "has 1 splits"));
  CHECK(contains(refusal(OpKind::kAlltoall, {input}, {rows_view(odd)}, {4, -1}), "a split is negative"));
  CHECK(contains(refusal(OpKind::kAllgather, {input, input, input}, {input, input}, {}), "3 or 6, but there are 2"));
  CHECK(contains(refusal(OpKind::kAlltoall, {input, input, input}, {}, {}), "one for each of the 2 ranks"));
  CHECK(contains(refusal(OpKind::kAlltoall, {input, view(others)}, {}, {}), "rows of one shape"));
}

TEST("outputs: ranks that have joined give no rows") {
  World world(3);
  world.run([&](int rank) {
    Engine& engine = world.engine(rank);
    auto join = make_operation(OpKind::kJoin, kJoinName, {}, {});
    if (rank != 2) {
      std::vector<int32_t> rows = rows_of(rank, 2);
      std::vector<int32_t> whole(8);
      auto gather = make_operation(OpKind::kAllgather, "x", {rows_view(rows)}, {rows_view(whole)});
      gather->request.received_splits = Rows{2, 2, 0};
      run_operation(engine, gather);
      CHECK_EQ(whole.back(), 1'000'003);
    }
    run_operation(engine, join);
  });
}

}  // namespace
}  // namespace hvd::testing
