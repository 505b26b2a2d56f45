// Process sets that only their members ask for.
#include <atomic>
#include <thread>

#include "engine/engine.h"
#include "testing/array.h"
#include "testing/check.h"
#include "testing/world.h"

namespace hvd::testing {
namespace {

constexpr Duration kSoon = std::chrono::seconds(30);

std::shared_ptr<Operation> make_change(OpKind kind, const std::string& name, const std::vector<int64_t>& ranks) {
  auto operation = make_operation(kind, "of_members." + name, {}, {});
  operation->request.ranks = ranks;
  operation->request.by_members = true;
  operation->request.call_site = "train.py:3";
  return operation;
}

uint32_t add(Engine& engine, const std::string& name, const std::vector<int64_t>& ranks) {
  auto operation = make_change(OpKind::kAddProcessSet, name, ranks);
  run_operation(engine, operation);
  return operation->result.new_process_set;
}

void remove(Engine& engine, uint32_t set, const std::vector<int64_t>& ranks) {
  std::vector<int64_t> listed{static_cast<int64_t>(set)};
  listed.insert(listed.end(), ranks.begin(), ranks.end());
  run_operation(engine, make_change(OpKind::kRemoveProcessSet, "remove." + std::to_string(set), listed));
}

// The sum of rank + 1 over the members.
double sum_in(Engine& engine, uint32_t set, size_t count = 3000) {
  std::vector<double> values(count, engine.rank() + 1.0);
  auto operation = make_operation(OpKind::kAllreduce, "x", {view(values)}, {view(values)});
  operation->request.process_set = set;
  run_operation(engine, operation);
  return values.back();
}

template <typename Body>
std::string error_after(const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST("sets of members: pairs make, use and remove them at the same time, and nobody else calls anything") {
  for (const Wire wire : {Wire::kMemory, Wire::kSockets, Wire::kHosts, Wire::kMpi}) {
    World world(5, {}, wire);
    world.run([&](int rank) {
      Engine& engine = world.engine(rank);
      if (rank == 4) return;
      const int64_t first = rank / 2 * 2;
      const std::vector<int64_t> ranks{first, first + 1};
      uint32_t last = 0;
      for (int round = 0; round < 20; ++round) {
        const uint32_t set = add(engine, "pair " + std::to_string(first), ranks);
        CHECK(set > last);
        last = set;
        CHECK_EQ(sum_in(engine, set, round % 2 == 0 ? 3 : 3000), static_cast<double>(2 * first + 3));
        remove(engine, set, ranks);
        CHECK(contains(error_after([&] { sum_in(engine, set); }), "it was removed"));
      }
    });
    std::vector<uint32_t> sets(5);
    world.run([&](int rank) {  // all number them alike
      auto operation = make_operation(OpKind::kAddProcessSet, "all", {}, {});
      operation->request.ranks = {1, 4};
      run_operation(world.engine(rank), operation);
      sets[static_cast<size_t>(rank)] = operation->result.new_process_set;
      if (rank == 1 || rank == 4) CHECK_EQ(sum_in(world.engine(rank), operation->result.new_process_set), 7.0);
      if (rank == 1 || rank == 4) remove(world.engine(rank), operation->result.new_process_set, {1, 4});
    });
    for (const uint32_t set : sets) CHECK_EQ(set, sets.front());
  }
}

TEST("sets of members: what a rank cannot ask for is refused") {
  World world(3);
  Engine& engine = world.engine(0);
  const auto refused = [&](const std::vector<int64_t>& ranks) { return error_after([&] { add(engine, "p", ranks); }); };
  CHECK(contains(refused({1, 2}), "rank 0 is not one of the ranks"));
  CHECK(contains(refused({0, 3}), "rank 3 does not exist"));
  CHECK(contains(refused({2, 0}), "the ranks must rise"));
  CHECK(contains(error_after([&] { remove(engine, 7, {0}); }), "there is no such process set"));
  const uint32_t own = add(engine, "own", {0});
  CHECK(contains(error_after([&] { remove(engine, own, {0, 1}); }), "there is no such process set"));
  CHECK_EQ(sum_in(engine, own), 1.0);
  remove(engine, own, {0});
  CHECK(contains(error_after([&] { remove(engine, own, {0}); }), "there is no such process set"));
  auto sum = make_change(OpKind::kBarrier, "b", {0});
  CHECK(contains(error_after([&] { run_operation(engine, sum); }), "by_members is for process sets"));
}

TEST("sets of members: different ranks under one name are an error of all that ask") {
  World world(3);
  world.run([&](int rank) {
    Engine& engine = world.engine(rank);
    const std::string text =
        error_after([&] { add(engine, "p", rank == 0 ? std::vector<int64_t>{0, 2} : std::vector<int64_t>{0, 1, 2}); });
    CHECK(contains(text, "Mismatched ranks for of_members.p"));
    CHECK(contains(text, "rank 0 sent add_process_set 0, 2 by its members at train.py:3"));
    const uint32_t set = add(engine, "p", {0, 1, 2});
    CHECK_EQ(sum_in(engine, set), 6.0);
  });
}

TEST("sets of members: an operation in flight ends before its set does") {
  World world(3);
  world.run([&](int rank) {
    Engine& engine = world.engine(rank);
    if (rank == 1) return;
    for (int round = 0; round < 20; ++round) {
      const uint32_t set = add(engine, "p", {0, 2});
      std::vector<float> values(4000, 2.0F);
      auto in_flight = make_operation(OpKind::kAllreduce, "in flight", {view(values)}, {view(values)});
      in_flight->request.process_set = set;
      engine.submit(in_flight);
      remove(engine, set, {0, 2});
      CHECK(in_flight->done());
      CHECK_EQ(values.back(), 4.0F);
    }
  });
}

TEST("sets of members: the end of a rank ends the wait for it") {
  World world(3);
  auto waits = make_change(OpKind::kAddProcessSet, "p", {0, 2});
  world.engine(0).submit(waits);
  world.engine(2).close("it is tired");
  REQUIRE(world.engine(0).wait(*waits, kSoon));
  REQUIRE(waits->error().has_value());
  CHECK(waits->error()->kind() == ErrorKind::kShutDown);
  CHECK(contains(waits->error()->what(), "it is tired"));
  CHECK(contains(error_after([&] { add(world.engine(1), "q", {1}); }), "it is tired"));
}

// Ranks learn of the end of a set at different times.
bool has_sets(World& world, uint64_t count) {
  const TimePoint until = std::chrono::steady_clock::now() + kSoon;
  for (int rank = 0; rank < world.size(); ++rank) {
    while (world.engine(rank).statistics().process_sets != count && std::chrono::steady_clock::now() < until) {
      std::this_thread::yield();
    }
    if (world.engine(rank).statistics().process_sets != count) return false;
  }
  return true;
}

TEST("sets of members: one that its members leave ends on all ranks, whoever leaves first, and nobody waits") {
  for (const Wire wire : {Wire::kMemory, Wire::kSockets, Wire::kHosts, Wire::kMpi}) {
    World world(4, {}, wire);
    constexpr int kRounds = kSanitized ? 30 : 300;
    world.run([&](int rank) {
      Engine& engine = world.engine(rank);
      if (rank == 0) return;  // coordinates the job, and is no member
      for (int round = 0; round < kRounds; ++round) {
        const uint32_t set = add(engine, "three", {1, 2, 3});
        const uint32_t alone = add(engine, "alone " + std::to_string(rank), {rank});
        engine.leave_process_set(alone, "");
        CHECK_EQ(sum_in(engine, set), 9.0);
        std::vector<float> values(round % 2 == 0 ? 4000 : 3, 2.0F);
        auto in_flight = make_operation(OpKind::kAllreduce, "in flight", {view(values)}, {view(values)});
        in_flight->request.process_set = set;
        engine.submit(in_flight);
        engine.leave_process_set(set, "end.py:1");
        CHECK(contains(error_after([&] { sum_in(engine, set); }), "it was removed"));
        CHECK(contains(error_after([&] { engine.leave_process_set(set, ""); }), "cannot leave process set"));
        REQUIRE(engine.wait(*in_flight, kSoon));
        REQUIRE(!in_flight->error());
        CHECK_EQ(values.back(), 6.0F);
      }
    });
    CHECK(has_sets(world, 1));
  }
}

TEST("sets of members: what needs a rank that has left is an error that names it, before and after") {
  World world(3);
  std::atomic<bool> waits{false};
  world.run([&](int rank) {
    Engine& engine = world.engine(rank);
    const uint32_t set = add(engine, "p", {0, 1, 2});
    if (rank == 1) {
      const TimePoint until = std::chrono::steady_clock::now() + kSoon;
      while (!waits && std::chrono::steady_clock::now() < until) std::this_thread::yield();
      engine.leave_process_set(set, "end.py:7");
      return;
    }
    std::vector<float> values(4000, 2.0F);
    auto early = make_operation(OpKind::kAllreduce, "early", {view(values)}, {view(values)});
    early->request.process_set = set;
    auto receive = make_operation(OpKind::kRecv, "receive", {}, {view(values)});
    receive->request.process_set = set;
    receive->request.root = 1;
    if (rank == 2) {
      engine.submit(early);
      waits = true;
      REQUIRE(engine.wait(*early, kSoon));
      CHECK(contains(early->error()->what(), "early failed: rank 1 has left the process set at end.py:7"));
    }
    CHECK(contains(error_after([&] { sum_in(engine, set); }), "rank 1 has left the process set at end.py:7"));
    CHECK(contains(error_after([&] { run_operation(engine, receive); }), "rank 1 has left the process set"));
    // The others can still send to each other.
    const std::vector<Buffer> whole{view(values)};
    auto transfer =
        rank == 0 ? make_operation(OpKind::kSend, "t", whole, {}) : make_operation(OpKind::kRecv, "t", {}, whole);
    transfer->request.root = 2 - rank;
    transfer->request.process_set = set;
    run_operation(engine, transfer);
    engine.leave_process_set(set, "");
  });
  CHECK(has_sets(world, 1));
}

TEST("sets of members: the end of a rank ends its membership, and that of all ranks cannot be left") {
  World world(3);
  std::atomic<uint32_t> set = 0;
  world.run([&](int rank) {
    if (rank > 0) set = add(world.engine(rank), "p", {1, 2});
  });
  CHECK(contains(error_after([&] { world.engine(0).leave_process_set(0, ""); }), "cannot leave process set 0"));
  CHECK(contains(error_after([&] { world.engine(0).leave_process_set(set, ""); }), "cannot leave"));
  world.engine(1).close("it is tired");
  world.engine(2).leave_process_set(set, "");
  const TimePoint until = std::chrono::steady_clock::now() + kSoon;
  while (world.engine(2).statistics().process_sets != 1 && std::chrono::steady_clock::now() < until) {
    std::this_thread::yield();
  }
  CHECK_EQ(world.engine(2).statistics().process_sets, 1U);
  world.engine(2).close("at last");
  world.engine(2).leave_process_set(set, "");
}

}  // namespace
}  // namespace hvd::testing
