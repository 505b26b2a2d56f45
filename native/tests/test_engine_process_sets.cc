#include <atomic>

#include "testing/array.h"
#include "testing/check.h"
#include "testing/world.h"

namespace hvd::testing {
namespace {

uint32_t add(Engine& engine, const std::vector<int64_t>& ranks) {
  auto operation = make_operation(OpKind::kAddProcessSet, "process_set.change", {}, {});
  operation->request.ranks = ranks;
  run_operation(engine, operation);
  return operation->result.new_process_set;
}

void remove(Engine& engine, uint32_t set) {
  auto operation = make_operation(OpKind::kRemoveProcessSet, "process_set.change", {}, {});
  operation->request.ranks = {set};
  run_operation(engine, operation);
}

// The sum of rank + 1 over the members, of so many elements that they do not travel with the announcement.
double sum_in(Engine& engine, uint32_t set, const std::string& name, size_t count = 3000) {
  std::vector<double> values(count, engine.rank() + 1.0);
  auto operation = make_operation(OpKind::kAllreduce, name, {view(values)}, {view(values)});
  operation->request.process_set = set;
  run_operation(engine, operation);
  return values.back();
}

template <typename Body>
std::string error_text(const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST("process sets: operations of a set involve its members only") {
  for (const Wire wire : {Wire::kMemory, Wire::kSockets, Wire::kMpi}) {
    World world(4, {}, wire);
    world.run([&](int rank) {
      Engine& engine = world.engine(rank);
      const uint32_t even = add(engine, {0, 2});
      const uint32_t odd = add(engine, {1, 3});
      CHECK_EQ(even, 1U);
      CHECK_EQ(odd, 2U);
      for (int round = 0; round < 20; ++round) {
        const bool small = round % 2 == 0;
        CHECK_EQ(sum_in(engine, rank % 2 == 0 ? even : odd, "x", small ? 3 : 3000), rank % 2 == 0 ? 4.0 : 6.0);
        CHECK_EQ(sum_in(engine, 0, "x"), 10.0);
      }
      const std::string text = error_text([&] { sum_in(engine, rank % 2 == 0 ? odd : even, "x"); });
      CHECK(contains(text, "is not a member of the process set of ranks"));
    });
  }
}

TEST("process sets: they come and go while others are in use, and their ids are not used again") {
  World world(4);
  world.run([&](int rank) {
    Engine& engine = world.engine(rank);
    for (uint32_t round = 0; round < 30; ++round) {
      std::vector<float> values(5000, 1.0F);
      auto in_flight = make_operation(OpKind::kAllreduce, "in flight", {view(values)}, {view(values)});
      engine.submit(in_flight);
      const uint32_t set = add(engine, {1, 2, 3});
      CHECK_EQ(set, round + 1);
      std::vector<float> others(4000, 2.0F);
      auto in_set = make_operation(OpKind::kAllreduce, "in set", {view(others)}, {view(others)});
      in_set->request.process_set = set;
      if (rank != 0) engine.submit(in_set);  // still in flight when the set is removed
      remove(engine, set);
      if (rank != 0) CHECK(in_set->done());
      if (rank != 0) CHECK_EQ(others.front(), 6.0F);
      CHECK(engine.wait(*in_flight, std::chrono::seconds(30)));
      CHECK_EQ(values.back(), 4.0F);
      CHECK(contains(error_text([&] { sum_in(engine, set, "y"); }), "it was removed"));
    }
  });
}

TEST("process sets: a set does not wait for another") {
  World world(3);
  std::atomic<bool> first_done{false};
  world.run([&](int rank) {
    Engine& engine = world.engine(rank);
    const uint32_t set = add(engine, {0, 1});
    if (rank < 2) {
      for (int round = 0; round < 50; ++round) CHECK_EQ(sum_in(engine, set, "x"), 3.0);
      first_done = true;
    } else {  // the set of all ranks stands still until the other set has done its work
      const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
      auto never = make_operation(OpKind::kBarrier, "never", {}, {});
      while (!first_done && std::chrono::steady_clock::now() < until) {
        static_cast<void>(never->wait_done(std::chrono::milliseconds(1)));
      }
    }
    CHECK_EQ(sum_in(engine, 0, "all"), 6.0);
  });
}

TEST("process sets: what cannot be a process set is refused") {
  World world(2);
  world.run([&](int rank) {
    Engine& engine = world.engine(rank);
    const auto refused = [&](const std::vector<int64_t>& ranks) { return error_text([&] { add(engine, ranks); }); };
    CHECK(contains(refused({}), "at least one rank"));
    CHECK(contains(refused({0, 2}), "rank 2 does not exist"));
    CHECK(contains(refused({-1}), "rank -1 does not exist"));
    CHECK(contains(refused({1, 1}), "twice"));
    CHECK(contains(error_text([&] { remove(engine, 0); }), "which stays"));
    CHECK(contains(error_text([&] { remove(engine, 9); }), "no such process set"));
  });
}

// In an elastic job, sets become equal when ranks have gone.
TEST("process sets: sets of the same ranks have names of their own") {
  World world(2);
  world.run([&](int rank) {
    Engine& engine = world.engine(rank);
    const uint32_t first = add(engine, {0, 1});
    const uint32_t second = add(engine, {0, 1});
    CHECK_EQ(first, 1U);
    CHECK_EQ(second, 2U);
    // In flight at once; each rank begins with another set.
    std::vector<std::vector<double>> values(3, {rank + 1.0});
    std::vector<std::shared_ptr<Operation>> operations;
    for (const uint32_t i : {0U, 1U, 2U}) {
      const uint32_t set = rank == 0 ? i : 2 - i;
      operations.push_back(make_operation(OpKind::kAllreduce, "x", {view(values[set])}, {view(values[set])}));
      operations.back()->request.process_set = set;
      submit_to(engine, operations.back(), false);
    }
    for (const auto& operation : operations) CHECK(engine.wait(*operation, std::chrono::seconds(30)));
    for (const auto& value : values) CHECK_EQ(value.front(), 3.0);
    remove(engine, first);
    CHECK_EQ(sum_in(engine, second, "x"), 3.0);
    CHECK_EQ(sum_in(engine, 0, "x"), 3.0);
  });
}

TEST("process sets: ranks that want different changes get an error, and nothing has changed") {
  World world(3);
  world.run([&](int rank) {
    Engine& engine = world.engine(rank);
    const std::string text = error_text([&] { add(engine, {0, rank == 1 ? 1 : 2}); });
    CHECK(contains(text, "Mismatched ranks"));
    const uint32_t set = add(engine, {0, 1});
    CHECK_EQ(set, 1U);
    const std::string other = error_text([&] {
      if (rank == 2) {
        add(engine, {2});
      } else {
        remove(engine, set);
      }
    });
    CHECK(contains(other, "Mismatched operations"));
    if (rank < 2) CHECK_EQ(sum_in(engine, set, "x"), 3.0);
    remove(engine, set);
  });
}

TEST("process sets: a member that leaves fails the operations of its sets only") {
  World world(3);
  std::vector<uint32_t> sets(3);
  world.run([&](int rank) {
    sets[static_cast<size_t>(rank)] = add(world.engine(rank), {0, 1});
    add(world.engine(rank), {1, 2});
  });
  world.engine(2).close("it is tired");
  world.run([&](int rank) {
    if (rank == 2) return;
    Engine& engine = world.engine(rank);
    CHECK_EQ(sum_in(engine, sets[0], "x"), 3.0);
    CHECK(contains(error_text([&] { sum_in(engine, 0, "all"); }), "it is tired"));
    if (rank == 1) CHECK(contains(error_text([&] { sum_in(engine, 2, "pair"); }), "it is tired"));
  });
}

}  // namespace
}  // namespace hvd::testing
