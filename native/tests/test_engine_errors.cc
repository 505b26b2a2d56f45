// Wrong calls and disagreement: what the caller sees, and that the engine goes on.
#include <mutex>

#include "engine/engine.h"
#include "testing/array.h"
#include "testing/check.h"
#include "testing/log.h"
#include "testing/manual_clock.h"
#include "testing/world.h"

namespace hvd::testing {
namespace {

// The error that submitting, or waiting, ends in.
std::optional<Error> error_of(Engine& engine, const std::shared_ptr<Operation>& operation) {
  try {
    run_operation(engine, operation);
  } catch (const Error& error) {
    return error;
  }
  return std::nullopt;
}

void check_refused(Engine& engine, const std::shared_ptr<Operation>& operation, const std::string& part) {
  const auto error = error_of(engine, operation);
  REQUIRE(error.has_value());
  CHECK(error->kind() == ErrorKind::kUsage);
  CHECK(contains(error->what(), part));
  CHECK(contains(error->what(), operation->spec.name));
}

void check_sum(Engine& engine, const std::string& name, int64_t count = 3) {
  Array array = samples(DType::kFloat32, ReduceOp::kSum, engine.rank(), {count});
  run_operation(engine, make_allreduce(name, {array.view()}, {array.view()}));
  CHECK_EQ(array.get(0), reduced(DType::kFloat32, ReduceOp::kSum, engine.size(), 0));
}

EngineOptions with_names(int size) {
  EngineOptions options;
  for (int rank = 0; rank < size; ++rank) options.rank_names.push_back("host-" + std::to_string(rank));
  return options;
}

TEST("engine: calls that make no sense are refused where they are made") {
  World world(2);
  Engine& engine = world.engine(0);
  Array rows(DType::kFloat32, {4, 2});
  Array scalar(DType::kFloat32, {});
  Array longer(DType::kFloat32, {5, 2});
  Array whole(DType::kInt32, {4, 2});
  const auto with_root = [&](int root) {
    auto operation = make_operation(OpKind::kBroadcast, "broadcast", {rows.view()}, {rows.view()});
    operation->request.root = root;
    return operation;
  };
  check_refused(engine, with_root(2), "root rank 2");
  check_refused(engine, with_root(-1), "root rank -1");
  for (const OpKind kind : {OpKind::kAllgather, OpKind::kAlltoall, OpKind::kReducescatter}) {
    check_refused(engine, make_operation(kind, "scalar", {scalar.view()}, {scalar.view()}), "scalar");
  }
  check_refused(engine, make_allreduce("none", {}, {}), "at least one tensor");
  check_refused(engine, make_allreduce("shape", {rows.view()}, {longer.view()}), "[4, 2]");
  check_refused(engine, make_allreduce("dtype", {rows.view()}, {whole.view()}), "float32");
  check_refused(engine, make_allreduce("missing", {rows.view()}, {}), "output");
  const auto with_splits = [&](std::vector<int64_t> splits) {
    auto operation = make_operation(OpKind::kAlltoall, "alltoall", {rows.view()}, {});
    operation->request.splits = std::move(splits);
    return operation;
  };
  check_refused(engine, with_splits({1}), "1 splits, but the size of its process set is 2");
  check_refused(engine, with_splits({1, 1, 1}), "3 splits");
  check_refused(engine, with_splits({3, 2}), "5");
  check_refused(engine, with_splits({-1, 2}), "negative");
  check_refused(engine, make_operation(OpKind::kAlltoall, "odd", {longer.view()}, {}), "multiple");
  auto elsewhere = make_allreduce("elsewhere", {rows.view()}, {rows.view()});
  elsewhere->request.process_set = 7;
  check_refused(engine, elsewhere, "process set does not exist");
  world.run([&](int rank) { check_sum(world.engine(rank), "fine"); });
}

TEST("engine: a name that is in flight is refused, and free again afterward") {
  World world(2);
  Array first(DType::kFloat32, {3});
  Array second(DType::kFloat32, {3});
  auto operation = make_allreduce("x", {first.view()}, {first.view()});
  world.engine(0).submit(operation);
  const auto error = error_of(world.engine(0), make_allreduce("x", {second.view()}, {second.view()}));
  REQUIRE(error.has_value());
  CHECK(error->kind() == ErrorKind::kDuplicateName);
  CHECK(contains(error->what(), "x is still in flight"));
  run_operation(world.engine(1), make_allreduce("x", {second.view()}, {second.view()}));
  CHECK(world.engine(0).wait(*operation, std::chrono::seconds(30)));
  world.run([&](int rank) { check_sum(world.engine(rank), "x"); });
}

// Again and again under the same name: it must be free when the error is seen.
TEST("engine: a mismatch is an error on all ranks, and nothing else is hurt") {
  for (const Wire wire : {Wire::kMemory, Wire::kSockets}) {
    const int size = 3;
    World world(size, with_names(size), wire);
    world.run([&](int rank) {
      Engine& engine = world.engine(rank);
      for (int64_t round = 0; round < (kSanitized ? 50 : 300); ++round) {
        Array array(DType::kFloat32, {rank == 1 ? 5 : 3 + round % 2 * 4000});
        const auto error = error_of(engine, make_allreduce("x", {array.view()}, {array.view()}));
        REQUIRE(error.has_value());
        CHECK(error->kind() == ErrorKind::kMismatch);
        CHECK(contains(error->what(), "tensor shapes for x"));
        CHECK(contains(error->what(), "rank 1 (host-1) sent allreduce(Sum) of float32 [5]"));
        CHECK(contains(error->what(), "rank 0 (host-0), rank 2 (host-2) sent"));
        if (round % 10 == 0) check_sum(engine, "x", 6000);
      }
    });
  }
}

TEST("engine: a mismatch with a request that was announced by number") {
  World world(2, with_names(2));
  world.run([&](int rank) {
    Engine& engine = world.engine(rank);
    for (int round = 0; round < 3; ++round) check_sum(engine, "x", 5000);
    Array array(DType::kFloat32, {rank == 0 ? 5000 : 5001});
    const auto error = error_of(engine, make_allreduce("x", {array.view()}, {array.view()}));
    REQUIRE(error.has_value());
    CHECK(contains(error->what(), "[5000]"));
    CHECK(contains(error->what(), "[5001]"));
    for (int round = 0; round < 3; ++round) check_sum(engine, "x", 5000);
  });
}

TEST("engine: warns once of an operation that some ranks do not submit") {
  const int size = 3;
  Log log;
  auto clock = std::make_shared<ManualClock>();
  EngineOptions options = with_names(size);
  options.log = log.sink();
  options.clock = clock;
  options.stall_check_time = std::chrono::seconds(60);
  World world(size, options);
  Array late = samples(DType::kFloat32, ReduceOp::kSum, 1, {3});
  auto operation = make_allreduce("late", {late.view()}, {late.view()});
  world.engine(1).submit(operation);
  const auto barrier = [&] {
    world.run([&](int rank) { run_operation(world.engine(rank), make_operation(OpKind::kBarrier, "tick", {}, {})); });
  };
  barrier();
  clock->advance(std::chrono::seconds(59));
  barrier();
  CHECK_EQ(log.size(), 0U);
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (log.size() == 0 && std::chrono::steady_clock::now() < until) {
    clock->advance(std::chrono::seconds(1));
    barrier();
  }
  for (int i = 0; i < 3; ++i) {
    clock->advance(std::chrono::seconds(15));
    barrier();
  }
  REQUIRE(log.size() == 1);
  CHECK(contains(log.lines[0], "late: submitted by rank 1 (host-1)"));
  CHECK(contains(log.lines[0], "\nrank 0 (host-0): [late]\n"));
  CHECK(contains(log.lines[0], "\nrank 2 (host-2): [late]\n"));
  CHECK(contains(log.lines[0], "It last submitted tick"));
  CHECK(!operation->done());
  world.run([&](int rank) {
    if (rank != 1) check_sum(world.engine(rank), "late");
  });
  CHECK(world.engine(1).wait(*operation, std::chrono::seconds(30)));
}

TEST("engine: an idle coordinator warns by itself, whoever drove it last") {
  for (const Wire wire : {Wire::kMemory, Wire::kSockets}) {
    Log log;
    EngineOptions options;
    options.log = log.sink();
    options.stall_check_time = std::chrono::milliseconds(50);
    World world(2, options, wire);
    world.run([&](int rank) { check_sum(world.engine(rank), "before"); });
    Array late(DType::kFloat32, {3});
    auto operation = make_allreduce("late", {late.view()}, {late.view()});
    // The coordinator's caller comes and goes; the engine itself must remember to look.
    submit_to(world.engine(0), operation, true);
    CHECK(!world.engine(0).wait(*operation, std::chrono::milliseconds(1)));
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(5);
    while (log.size() == 0 && std::chrono::steady_clock::now() < until) {
      static_cast<void>(operation->wait_done(std::chrono::milliseconds(10)));
    }
    CHECK_EQ(log.size(), 1U);
  }
}

TEST("engine: a stall ends in an error on all ranks, if wanted") {
  for (const Wire wire : {Wire::kMemory, Wire::kSockets}) {
    const int size = 3;
    Log log;
    EngineOptions options = with_names(size);
    options.log = log.sink();
    options.stall_check_time = std::chrono::milliseconds(20);
    options.stall_shutdown_time = std::chrono::milliseconds(600);  // a busy machine, too, has time for the report
    World world(size, options, wire);
    world.run([&](int rank) {
      Engine& engine = world.engine(rank);
      if (rank == 2) {  // submits nothing until it hears of the end
        const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
        auto other = make_operation(OpKind::kBarrier, "other", {}, {});
        while (!engine.error() && std::chrono::steady_clock::now() < until) {
          static_cast<void>(other->wait_done(std::chrono::milliseconds(5)));
        }
      }
      Array array(DType::kFloat32, {3});
      const auto error = error_of(engine, make_allreduce("x", {array.view()}, {array.view()}));
      REQUIRE(error.has_value());
      CHECK(error->kind() == ErrorKind::kStalled);
      CHECK(contains(error->what(), "\nrank 2 (host-2): [x]"));
      CHECK(contains(error->what(), "It sleeps"));
    });
    CHECK(log.size() >= 1);
  }
}

}  // namespace
}  // namespace hvd::testing
