// What is special when MPI moves the data; that the results are right, the tests of the engine's collectives say.
#include <atomic>
#include <thread>

#include "backend/mpi/operators.h"
#include "testing/array.h"
#include "testing/check.h"
#include "testing/world.h"

namespace hvd::testing {
namespace {

constexpr std::chrono::seconds kPatience{30};

std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

void sum(Engine& engine, const std::string& name, int64_t count) {
  Array array = samples(DType::kFloat32, ReduceOp::kSum, engine.rank(), {count});
  run_operation(engine, make_allreduce(name, {array.view()}, {array.view()}));
  CHECK_EQ(array.get(1), reduced(DType::kFloat32, ReduceOp::kSum, engine.size(), 1));
}

TEST("mpi: all batches go through MPI, and every communicator is freed") {
  World world(2, {}, Wire::kMpi);
  world.run([&](int rank) { sum(world.engine(rank), "x", 5000); });
  CHECK_EQ(world.mpi().num_calls("allreduce"), 2);
  CHECK_EQ(world.mpi().num_communicators(), 1);
  world.run([&](int rank) {
    world.engine(rank).close("done");
    CHECK(world.mpi_process(rank).finish(kPatience));
  });
  CHECK_EQ(world.mpi().num_communicators(), 0);
  CHECK_EQ(world.mpi().num_finalized(), 2);
  CHECK(world.mpi().wrong_uses().empty());
}

// Each rank submits in an order of its own, with priorities that differ from rank to rank.
TEST("mpi: the calls of all ranks come in the same order") {
  const int size = 3;
  EngineOptions options;
  options.fusion_threshold = 0;
  World world(size, options, Wire::kMpi);
  world.run([&](int rank) {
    Engine& engine = world.engine(rank);
    for (int round = 0; round < 20; ++round) {
      std::vector<Array> arrays;
      std::vector<std::shared_ptr<Operation>> operations;
      constexpr int kNum = 7;
      for (int i = 0; i < kNum; ++i)
        arrays.push_back(samples(DType::kInt64, ReduceOp::kSum, rank, {i % 3 == 0 ? 3 : 900 + i}));
      for (int i = 0; i < kNum; ++i) {
        const auto which = static_cast<size_t>((i * (rank + 1)) % kNum);
        auto operation = make_allreduce("x" + std::to_string(which), {arrays[which].view()}, {arrays[which].view()});
        operation->request.priority = rank - i;
        engine.submit(operation);
        operations.push_back(operation);
      }
      for (const auto& operation : operations) {
        REQUIRE(engine.wait(*operation, kPatience));
        CHECK(!operation->error().has_value());
      }
      for (Array& array : arrays) CHECK_EQ(array.get(2), reduced(DType::kInt64, ReduceOp::kSum, size, 2));
    }
  });
  CHECK(world.mpi().wrong_uses().empty());
}

TEST("mpi: a job of another size than MPI's, or a rank twice, is refused") {
  FakeMpi fake(2);
  const mpi::Library library{FakeMpi::functions(), "/opt/libmpi_abi.so", "Fake 1.0"};
  std::vector<std::shared_ptr<mpi::MpiProcess>> processes;
  for (int rank = 0; rank < 2; ++rank) {
    processes.push_back(std::make_shared<mpi::MpiProcess>(library, true));
    REQUIRE(processes.back()->wait(kPatience));
    CHECK_EQ(processes.back()->rank(), rank);
  }
  const std::string text = error_of([&] { const mpi::MpiWorld world(processes[0], 0, 3); });
  CHECK(contains(text, "rank 0: the job has 3 ranks, but MPI_COMM_WORLD 2"));
  CHECK(contains(text, "/opt/libmpi_abi.so (Fake 1.0)"));
  mpi::MpiWorld first(processes[0], 1, 2);
  mpi::MpiWorld second(processes[1], 1, 2);
  const std::string twice = error_of([&] { static_cast<void>(first.wait(kPatience)); }) +
                            error_of([&] { static_cast<void>(second.wait(kPatience)); });
  CHECK(contains(twice, "another process has the same rank"));
}

TEST("mpi: a rank that does not come is waited for with a deadline, and MPI can be given up then") {
  FakeMpi fake(2);
  const mpi::Library library{FakeMpi::functions(), "fake", "fake"};
  auto process = std::make_shared<mpi::MpiProcess>(library, true);
  REQUIRE(process->wait(kPatience));
  auto other = std::make_shared<mpi::MpiProcess>(library, true);
  REQUIRE(other->wait(kPatience));
  mpi::MpiWorld world(process, 0, 2);
  CHECK(!world.wait(std::chrono::milliseconds(20)));
  CHECK(!process->finish(std::chrono::milliseconds(20)));  // behind the call that waits
  mpi::MpiWorld late(other, 1, 2);
  CHECK(late.wait(kPatience));
  CHECK(world.wait(kPatience));
  CHECK(process->finish(kPatience));
}

TEST("mpi: threads that the library does not support are refused, with the way out") {
  {
    FakeMpi single(1, 0);
    mpi::MpiProcess process({FakeMpi::functions(), "fake", "fake"}, true);
    CHECK(contains(error_of([&] { static_cast<void>(process.wait(kPatience)); }), "MPI_THREAD_SINGLE"));
  }
  FakeMpi funneled(2, mpi::kThreadFunneled);
  mpi::MpiProcess own({FakeMpi::functions(), "fake", "fake"}, false);
  CHECK(own.wait(kPatience));
  CHECK(!own.all_threads());
  funneled.initialize_elsewhere();
  mpi::MpiProcess theirs({FakeMpi::functions(), "fake", "fake"}, true);
  CHECK(contains(error_of([&] { static_cast<void>(theirs.wait(kPatience)); }), "call hvd.init() first"));
  CHECK(theirs.finish(kPatience));
  CHECK_EQ(funneled.num_finalized(), 0);
}

// Nothing comes back from MPI any more: the connections tell that a rank is lost, and nobody waits for MPI.
TEST("mpi: a rank that is lost ends what MPI has in flight, at once, and MPI is not called again") {
  const int size = 3;
  World world(size, {}, Wire::kMpi, 1);
  world.run([&](int rank) { sum(world.engine(rank), "x", 5000); });
  world.mpi().freeze();
  std::atomic<int> num_submitted{0};
  const auto start = std::chrono::steady_clock::now();
  world.run([&](int rank) {
    Engine& engine = world.engine(rank);
    Array array = samples(DType::kFloat32, ReduceOp::kSum, rank, {50'000});
    auto operation = make_allreduce("stuck", {array.view()}, {array.view()});
    engine.submit(operation);
    if (++num_submitted == size) {
      while (engine.statistics().batches < 2 && !operation->done())
        static_cast<void>(engine.wait(*operation, std::chrono::milliseconds(1)));
      world.kill_victim();
    }
    REQUIRE(engine.wait(*operation, kPatience));
    REQUIRE(operation->error().has_value());
    CHECK(operation->error()->kind() == ErrorKind::kPeerLost);
    CHECK(world.mpi_process(rank).thread().given_up().has_value());
    engine.close("the test ends");
    CHECK(!world.mpi_process(rank).finish(kPatience));
  });
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(5));
  CHECK_EQ(world.mpi().num_finalized(), 0);
}

TEST("mpi: an error of MPI ends the job with the name of the call") {
  World world(2, {}, Wire::kMpi);
  world.mpi().break_down();
  world.run([&](int rank) {
    const std::string text = error_of([&] { sum(world.engine(rank), "x", 5000); });
    CHECK(contains(text, "MPI_Testall failed: the fake broke down"));
    CHECK(contains(text, "MPI on rank"));
  });
}

TEST("mpi: a rank that closes in the middle is named, after a moment for what it gave to MPI before") {
  World world(2, {}, Wire::kMpi);
  world.run([&](int rank) { sum(world.engine(rank), "x", 5000); });
  world.mpi().freeze();
  world.run([&](int rank) {
    Engine& engine = world.engine(rank);
    Array array = samples(DType::kFloat32, ReduceOp::kSum, rank, {50'000});
    auto operation = make_allreduce("stuck", {array.view()}, {array.view()});
    engine.submit(operation);
    while (engine.statistics().batches < 2) static_cast<void>(engine.wait(*operation, std::chrono::milliseconds(1)));
    if (rank == 1) engine.close("its patience ended");
    REQUIRE(engine.wait(*operation, kPatience));
    REQUIRE(operation->error().has_value());
    CHECK(operation->error()->kind() == ErrorKind::kShutDown);
    CHECK(contains(operation->error()->what(), "its patience ended"));
  });
}

TEST("mpi: engines that follow one another share one MPI") {
  FakeMpi fake(2);
  const mpi::Library library{FakeMpi::functions(), "fake", "fake"};
  std::vector<std::shared_ptr<mpi::MpiProcess>> processes;
  for (int rank = 0; rank < 2; ++rank) {
    processes.push_back(std::make_shared<mpi::MpiProcess>(library, true));
    REQUIRE(processes.back()->wait(kPatience));
  }
  for (int round = 0; round < 3; ++round) {
    std::vector<std::unique_ptr<Engine>> engines;
    for (TransportParts& parts : make_memory_transports(2)) {
      EngineOptions options;
      options.mpi = std::make_shared<mpi::MpiWorld>(processes[static_cast<size_t>(parts.rank)], parts.rank, 2);
      engines.push_back(std::make_unique<Engine>(std::move(parts), options));
    }
    std::vector<std::thread> threads;
    threads.reserve(engines.size());
    for (const auto& engine : engines) threads.emplace_back([&] { sum(*engine, "x", 5000); });
    for (std::thread& thread : threads) thread.join();
  }
  for (const auto& process : processes) CHECK(process->finish(kPatience));
  CHECK_EQ(fake.num_communicators(), 0);
}

TEST("mpi: half types travel as float32, NaN and bool keep their meaning") {
  const mpi::Operators operators{};
  CHECK(mpi::wire_dtype(DType::kFloat16) == DType::kFloat32);
  CHECK(mpi::wire_dtype(DType::kBFloat16) == DType::kFloat32);
  CHECK(mpi::wire_dtype(DType::kFloat64) == DType::kFloat64);
  CHECK(mpi::reduction_of(DType::kBool, ReduceOp::kSum, operators).op == mpi::kMax);
  CHECK(mpi::reduction_of(DType::kBool, ReduceOp::kProduct, operators).op == mpi::kMin);
  CHECK(mpi::reduction_of(DType::kInt8, ReduceOp::kSum, operators).datatype == mpi::kUint8);
  CHECK(mpi::reduction_of(DType::kInt8, ReduceOp::kMin, operators).datatype == mpi::kInt8);
  CHECK(mpi::reduction_of(DType::kFloat32, ReduceOp::kMin, operators).op == operators.float_min);
  CHECK(contains(error_of([&] { static_cast<void>(mpi::reduction_of(DType::kFloat16, ReduceOp::kSum, operators)); }),
                 "float16"));
  CHECK(contains(error_of([&] { static_cast<void>(mpi::reduction_of(DType::kInt8, ReduceOp::kAdasum, operators)); }),
                 "no operation"));
}

TEST("mpi: a library that is not there is named, with the reason") {
  const std::string text =
      error_of([] { static_cast<void>(mpi::load_library({"/no/such/libmpi_abi.so", "libc.so.6"})); });
  CHECK(contains(text, "/no/such/libmpi_abi.so: "));
  CHECK(contains(text, "libc.so.6: it lacks MPI_Abi_get_version"));
}

}  // namespace
}  // namespace hvd::testing
