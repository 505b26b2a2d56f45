// Arrays that all ranks see, and allreduces of what lies in them.
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <fstream>
#include <latch>
#include <thread>

#include "testing/array.h"
#include "testing/check.h"
#include "testing/log.h"
#include "testing/processes.h"
#include "testing/world.h"

namespace hvd::testing {
namespace {

constexpr Duration kPatience = std::chrono::seconds(kSanitized ? 20 : 10);
constexpr Duration kPrompt = std::chrono::seconds(2);

OwnedArray share(Engine& engine, int64_t bytes) {
  auto operation = make_operation(OpKind::kShareMemory, "shared_memory.noname", {}, {});
  operation->request.ranks = {bytes};
  run_operation(engine, operation);
  return operation->result.arrays.front();
}

// An array in shared memory that holds the values of another one.
Buffer place(const OwnedArray& memory, size_t offset, Array& values) {
  Buffer buffer = values.view();
  std::memcpy(memory.data.get() + offset, buffer.data, buffer.bytes());
  buffer.data = memory.data.get() + offset;
  return buffer;
}

bool equal(const Buffer& a, const Buffer& b) {
  return a.bytes() == b.bytes() && std::memcmp(a.data, b.data, a.bytes()) == 0;
}

constexpr int64_t kCounts[] = {1, 3, 1021, 70'001};
constexpr DType kDTypes[] = {DType::kBool,    DType::kUInt8,    DType::kInt16,   DType::kInt32,  DType::kInt64,
                             DType::kFloat16, DType::kBFloat16, DType::kFloat32, DType::kFloat64};
constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct};

TEST("shared memory: results are bit-equal to those of private memory, for every dtype and operation") {
  for (const int size : {3, 2, 4}) {
    if (kSanitized && size != 3) break;
    World world(size);
    world.run([&](int rank) {
      Engine& engine = world.engine(rank);
      const OwnedArray memory = share(engine, int64_t{1} << 20);
      uint64_t reductions = 0;
      for (const int64_t count : kCounts) {
        for (const DType dtype : kDTypes) {
          for (const ReduceOp op : kOps) {
            for (const double factor : {1.0, 0.5}) {
              Array mine = samples(dtype, op, rank, {count});
              const Buffer shared = place(memory, 64, mine);
              for (const Buffer& buffer : {mine.view(), shared}) {
                auto operation = make_allreduce("x", {buffer}, {buffer}, op);
                operation->request.prescale = operation->request.postscale = factor;
                engine.submit(operation);  // so that small values do not travel with the announcement
                REQUIRE(engine.wait(*operation, std::chrono::seconds(30)));
                if (operation->error()) throw Error(*operation->error());
              }
              CHECK(equal(mine.view(), shared));
              ++reductions;
            }
          }
        }
      }
      CHECK_EQ(engine.statistics().direct_batches, reductions);
    });
  }
}

TEST("shared memory: several arrays and groups travel together, bit-equal to private ones") {
  World world(3);
  world.run([&](int rank) {
    Engine& engine = world.engine(rank);
    const OwnedArray memory = share(engine, int64_t{4} << 20);
    for (int round = 0; round < 20; ++round) {
      std::vector<Array> mine;
      std::vector<Buffer> shared;
      size_t offset = 0;
      for (int64_t i = 0; i < 40; ++i) {
        mine.push_back(samples(DType::kFloat32, ReduceOp::kSum, rank, {(i * 997) % 20'000 + 1}));
        shared.push_back(place(memory, offset, mine.back()));
        offset += shared.back().bytes();
      }
      std::vector<std::shared_ptr<Operation>> operations;
      for (size_t i = 0; i < mine.size(); i += 4) {
        const std::vector<Buffer> four(shared.begin() + static_cast<std::ptrdiff_t>(i),
                                       shared.begin() + static_cast<std::ptrdiff_t>(i) + 4);
        operations.push_back(make_allreduce("four." + std::to_string(i), four, four));
        engine.submit(operations.back());
      }
      for (const auto& operation : operations) REQUIRE(engine.wait(*operation, std::chrono::seconds(30)));
      for (size_t i = 0; i < mine.size(); ++i) {
        for (const int64_t at : {int64_t{0}, mine[i].count() - 1}) {
          CHECK_EQ(element(DType::kFloat32, shared[i].data, at), reduced(DType::kFloat32, ReduceOp::kSum, 3, at));
        }
      }
    }
    CHECK(engine.statistics().direct_batches >= 20);
  });
}

TEST("shared memory: one rank with private memory, or at another place, and all take the ordinary way") {
  World world(3);
  world.run([&](int rank) {
    Engine& engine = world.engine(rank);
    const OwnedArray memory = share(engine, int64_t{1} << 20);
    for (const int odd : {0, 1, 2}) {
      for (const bool elsewhere : {false, true}) {
        Array mine = samples(DType::kFloat64, ReduceOp::kSum, rank, {9001});
        const size_t offset = elsewhere && rank == odd ? 80'000 : 0;
        const Buffer buffer = !elsewhere && rank == odd ? mine.view() : place(memory, offset, mine);
        run_operation(engine, make_allreduce("x", {buffer}, {buffer}));
        for (const int64_t at : {0, 4500, 9000}) {
          CHECK_EQ(element(DType::kFloat64, buffer.data, at), reduced(DType::kFloat64, ReduceOp::kSum, 3, at));
        }
      }
    }
    CHECK_EQ(engine.statistics().direct_batches, uint64_t{0});
    Array mine = samples(DType::kFloat64, ReduceOp::kSum, rank, {9001});  // not in place
    Array result = samples(DType::kFloat64, ReduceOp::kSum, rank, {9001});
    run_operation(engine, make_allreduce("y", {place(memory, 0, mine)}, {result.view()}));
    CHECK_EQ(result.get(9000), reduced(DType::kFloat64, ReduceOp::kSum, 3, 9000));
    CHECK_EQ(element(DType::kFloat64, memory.data.get(), 4500), mine.get(4500));
    CHECK_EQ(engine.statistics().direct_batches, uint64_t{0});
  });
}

TEST("shared memory: process sets use it, and those who have joined are not waited for") {
  World world(3);
  world.run([&](int rank) {
    Engine& engine = world.engine(rank);
    const OwnedArray memory = share(engine, int64_t{1} << 20);
    auto add = make_operation(OpKind::kAddProcessSet, "process_set.change", {}, {});
    add->request.ranks = {0, 2};
    run_operation(engine, add);
    std::vector<double> values(5000, rank + 1.0);
    Buffer buffer = view(values);
    const auto sum = [&](uint32_t set) {
      std::memcpy(memory.data.get(), values.data(), buffer.bytes());
      Buffer shared = buffer;
      shared.data = memory.data.get();
      auto operation = make_operation(OpKind::kAllreduce, "x", {shared}, {shared});
      operation->request.process_set = set;
      run_operation(engine, operation);
      return element(DType::kFloat64, memory.data.get(), 4999);
    };
    if (rank != 1) {
      CHECK_EQ(sum(add->result.new_process_set), 4.0);
      CHECK_EQ(engine.statistics().direct_batches, uint64_t{1});
      CHECK_EQ(sum(0), 4.0);  // rank 1 joins
      CHECK_EQ(engine.statistics().direct_batches, uint64_t{1});
    } else {
      CHECK_EQ(element(DType::kFloat64, memory.data.get(), 0), 0.0);  // nobody else's values
    }
    auto join = make_operation(OpKind::kJoin, "join.noname", {}, {});
    run_operation(engine, join);
    CHECK_EQ(sum(0), 6.0);
  });
}

TEST("shared memory: the ranks must want the same number of bytes, and some") {
  World world(2);
  world.run([&](int rank) {
    Engine& engine = world.engine(rank);
    std::string text;
    try {
      share(engine, 1000 + rank);
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::kMismatch);
      text = error.what();
    }
    CHECK(contains(text, "Mismatched numbers of bytes"));
    CHECK(contains(text, "rank 1 sent share_memory 1001"));
    text.clear();
    try {
      share(engine, 0);
    } catch (const Error& error) {
      text = error.what();
    }
    CHECK(contains(text, "needs a positive number of bytes"));
    CHECK_EQ(share(engine, 1000).shape.front(), int64_t{1000});
  });
}

TEST("shared memory: ranks on other hosts, or alone, get private memory") {
  for (const Wire wire : {Wire::kMemory, Wire::kSockets}) {
    World world(wire == Wire::kMemory ? 1 : 2, {}, wire);
    world.run([&](int rank) {
      Engine& engine = world.engine(rank);
      const OwnedArray memory = share(engine, 100'000);
      Array mine = samples(DType::kFloat32, ReduceOp::kSum, rank, {20'000});
      const Buffer buffer = place(memory, 0, mine);
      run_operation(engine, make_allreduce("x", {buffer}, {buffer}));
      CHECK_EQ(element(DType::kFloat32, buffer.data, 19'999),
               reduced(DType::kFloat32, ReduceOp::kSum, engine.size(), 19'999));
      if (wire == Wire::kSockets) CHECK_EQ(engine.statistics().direct_batches, uint64_t{0});
    });
  }
}

TEST("shared memory: without room for files all go on with private memory") {
  // An operation of one rank cannot be limited among threads, so the segments are those of a limited process.
  std::vector<TransportParts> parts = make_memory_transports(2);
  const std::shared_ptr<Segment> small = Segment::create_private(2);
  parts[0].segment = small;
  parts[1].local_peers.front().segment = small;
  Log log;
  EngineOptions options;
  options.log = log.sink();
  std::vector<std::unique_ptr<Engine>> engines;
  for (TransportParts& rank_parts : parts) engines.push_back(std::make_unique<Engine>(std::move(rank_parts), options));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      Engine& engine = *engines[static_cast<size_t>(rank)];
      const OwnedArray memory = share(engine, 100'000);
      Array mine = samples(DType::kFloat32, ReduceOp::kSum, rank, {20'000});
      const Buffer buffer = place(memory, 0, mine);
      run_operation(engine, make_allreduce("x", {buffer}, {buffer}));
      CHECK_EQ(element(DType::kFloat32, buffer.data, 19'999), reduced(DType::kFloat32, ReduceOp::kSum, 2, 19'999));
      CHECK_EQ(engine.statistics().direct_batches, uint64_t{0});
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(contains(log.wait_for_line(), "takes private memory instead of shared memory: there is no room"));
}

TEST("shared memory: nobody can shorten what peers have mapped, and what could be shortened is not mapped") {
  const std::shared_ptr<Segment> segment = Segment::create_shared(2);
  struct stat facts{};
  REQUIRE(fstat(segment->fd(), &facts) == 0);
  for (const off_t bytes : {off_t{0}, facts.st_size - 1, facts.st_size + 1}) {
    CHECK(ftruncate(segment->fd(), bytes) != 0);
    CHECK_EQ(errno, EPERM);
  }
  CHECK(Segment::open(segment->fd(), 2) != nullptr);
  const Fd open_ended(memfd_create("horovod", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  REQUIRE(ftruncate(open_ended.get(), facts.st_size) == 0);
  std::string heard;
  try {
    Segment::open(open_ended.get(), 2);
  } catch (const Error& error) {
    heard = error.what();
  }
  CHECK(contains(heard, "not sealed"));
}

TEST("shared memory: a rank's array leaves the reach of its peers with its values") {
  const std::shared_ptr<Segment> segments[] = {Segment::create_shared(2), Segment::create_shared(2)};
  const std::vector<const Segment*> all{segments[0].get(), segments[1].get()};
  const size_t bytes = 300'000;
  SharedRegion first(all, 0, 0, bytes);
  SharedRegion second(all, 1, 0, bytes);
  first.own()[bytes - 1] = std::byte{7};
  CHECK(second.data(0)[bytes - 1] == std::byte{7});
  second.data(0)[5] = std::byte{9};
  CHECK(first.own()[5] == std::byte{9});
  const std::byte* address = first.own();
  first.detach();
  first.detach();
  second.data(0)[5] = std::byte{1};
  CHECK(first.own() == address);
  CHECK(first.own()[5] == std::byte{9});
  CHECK(first.own()[bytes - 1] == std::byte{7});
  CHECK(first.contains(address + 10, bytes - 10));
  CHECK(!first.contains(address + 10, bytes - 9));
  CHECK(!first.contains(second.own(), 1));
}

TEST("shared memory: a rank that leaves while others reduce keeps its values") {
  World world(2);
  std::latch all_ended(2);
  world.run([&](int rank) {
    Engine& engine = world.engine(rank);
    const OwnedArray memory = share(engine, 400'000);
    Array mine = samples(DType::kFloat32, ReduceOp::kSum, rank, {100'000});
    const Buffer buffer = place(memory, 0, mine);
    auto operation = make_allreduce("x", {buffer}, {buffer});
    engine.submit(operation);
    if (rank == 0) engine.close("it has had enough");  // before, while or after the operation runs
    static_cast<void>(engine.wait(*operation, std::chrono::seconds(10)));
    REQUIRE(operation->done());
    const std::vector<std::byte> then(buffer.data, buffer.data + buffer.bytes());
    all_ended.arrive_and_wait();  // now the peer does not write any more either
    CHECK(std::memcmp(then.data(), buffer.data, then.size()) == 0);
    if (!operation->error()) return;
    CHECK(operation->error()->kind() == ErrorKind::kShutDown);
  });
}

std::string try_sum(Engine& engine, const OwnedArray& memory, int64_t count) {
  Array mine = samples(DType::kFloat32, ReduceOp::kSum, engine.rank(), {count});
  const Buffer buffer = place(memory, 0, mine);
  try {
    run_operation(engine, make_allreduce("x", {buffer}, {buffer}));
  } catch (const Error& error) {
    return error.what();
  }
  return element(DType::kFloat32, buffer.data, 1) == reduced(DType::kFloat32, ReduceOp::kSum, engine.size(), 1)
             ? "fine"
             : "wrong";
}

TEST("shared memory: a process that dies in the middle of a reduction is named by all others, at once") {
  const int size = 3;
  EngineOptions options;
  options.rank_names = {"host-0", "host-1", "host-2"};
  for (const int victim : {0, 1, 2}) {
    Processes ranks(size, Wire::kMemory, options, [&](int, Engine& engine, const Processes::Say& say) {
      const int64_t count = kSanitized ? 400'000 : 4'000'000;
      const OwnedArray memory = share(engine, count * 4);
      std::string outcome = try_sum(engine, memory, count);
      say(engine.statistics().direct_batches == 1 ? outcome : "not direct");
      while (outcome == "fine") outcome = try_sum(engine, memory, count);
      say(outcome);
    });
    for (int rank = 0; rank < size; ++rank) CHECK_EQ(ranks.read_line(rank, kPatience), "fine");
    ranks.signal(victim, SIGKILL);
    const auto start = std::chrono::steady_clock::now();
    const std::string name = "rank " + std::to_string(victim) + " (host-" + std::to_string(victim) + ") was lost";
    for (int rank = 0; rank < size; ++rank) {
      if (rank != victim) CHECK(contains(ranks.read_line(rank, kPatience), name));
    }
    CHECK(std::chrono::steady_clock::now() - start < kPrompt);
  }
}

int count_lines(const char* path) {
  std::ifstream file(path);
  int lines = 0;
  for (std::string line; std::getline(file, line);) ++lines;
  return lines;
}

TEST("shared memory: nothing stays mapped when a world ends, also if its arrays live longer") {
  int before = 0;
  for (int round = 0; round < 20; ++round) {
    std::vector<OwnedArray> arrays(2);
    {
      World world(2);
      world.run([&](int rank) {
        OwnedArray& memory = arrays[static_cast<size_t>(rank)];
        memory = share(world.engine(rank), 100'000);
        CHECK_EQ(try_sum(world.engine(rank), memory, 20'000), "fine");
      });
    }
    for (const OwnedArray& memory : arrays) {
      CHECK_EQ(element(DType::kFloat32, memory.data.get(), 19'999),
               reduced(DType::kFloat32, ReduceOp::kSum, 2, 19'999));
    }
    arrays.clear();
    if (round == 4) before = count_lines("/proc/self/maps");
  }
  CHECK(count_lines("/proc/self/maps") <= before + 4);  // threads' stacks and heaps come and go
}

}  // namespace
}  // namespace hvd::testing
