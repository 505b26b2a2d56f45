// Sends and receives between two ranks of a process set.
#include <unistd.h>

#include <atomic>
#include <barrier>
#include <csignal>
#include <memory>
#include <thread>

#include "engine/engine.h"
#include "testing/array.h"
#include "testing/check.h"
#include "testing/log.h"
#include "testing/processes.h"
#include "testing/world.h"

namespace hvd::testing {
namespace {

constexpr Duration kPatience = std::chrono::seconds(kSanitized ? 60 : 30);

std::shared_ptr<Operation> make_transfer(OpKind kind, int peer, Buffer buffer, int32_t tag = 0) {
  auto operation = std::make_shared<Operation>();
  operation->request.kind = kind;
  operation->request.root = peer;
  operation->request.tag = tag;
  operation->request.call_site = kind == OpKind::kSend ? "send.py:1" : "recv.py:2";
  (kind == OpKind::kSend ? operation->request.inputs : operation->request.outputs) = {std::move(buffer)};
  return operation;
}

// The values that a rank sends.
std::vector<int32_t> values_of(int rank, int number, size_t count) {
  std::vector<int32_t> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = rank * 1'000'000 + number * 10'000 + static_cast<int32_t>(i % 9973);
  return values;
}

std::string error_text(Engine& engine, const std::shared_ptr<Operation>& operation) {
  try {
    run_operation(engine, operation);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

constexpr Wire kWires[] = {Wire::kMemory, Wire::kSockets, Wire::kTinySockets, Wire::kHosts, Wire::kTcp, Wire::kMpi};

TEST("transfers: tensors of every length arrive, from one and from any") {
  for (const Wire wire : kWires) {
    World world(3, {}, wire);
    world.run([&](int rank) {
      for (const size_t count : {size_t{0}, size_t{1}, size_t{1024}, size_t{1025}, size_t{300'000}}) {
        Engine& engine = world.engine(rank);
        if (rank == 2) continue;  // has no part in it
        std::vector<int32_t> sent = values_of(rank, 1, count);
        std::vector<int32_t> received(count);
        auto receive = make_transfer(OpKind::kRecv, rank == 0 ? 1 : -1, view(received));
        auto send = make_transfer(OpKind::kSend, 1 - rank, view(sent));
        engine.submit(receive);
        run_operation(engine, send);
        REQUIRE(engine.wait(*receive, kPatience));
        REQUIRE(!receive->error());
        CHECK_EQ(receive->result.source, 1 - rank);
        CHECK(received == values_of(1 - rank, 1, count));
      }
    });
  }
}

// The coordinator has no part in what the others do, and its caller no reason to look at the engine.
TEST("transfers: a coordinator that just left after a collective of all answers the other ranks") {
  World world(3);
  std::barrier<> all_sent(3);
  const auto leave = [](std::barrier<>* others) { others->arrive_and_drop(); };
  world.run([&](int rank) {
    const std::unique_ptr<std::barrier<>, decltype(leave)> leaves(&all_sent, leave);
    Engine& engine = world.engine(rank);
    constexpr int kNumRounds = kSanitized ? 100 : 1000;
    for (int round = 0; round < kNumRounds; ++round) {
      std::vector<float> sum(1, 1.0F);
      const auto together = make_allreduce("sum", {view(sum)}, {view(sum)});
      submit_to(engine, together, true);
      REQUIRE(engine.wait(*together, kPatience));
      std::vector<int32_t> values = values_of(rank, round, 10);
      if (rank == 1) run_operation(engine, make_transfer(OpKind::kSend, 2, view(values)));
      if (rank == 2) run_operation(engine, make_transfer(OpKind::kRecv, 1, view(values)));
      if (rank == 2) REQUIRE(values == values_of(1, round, 10));
      all_sent.arrive_and_wait();
    }
  });
}

// All ranks send to all others and receive from all, in batches of mixed lengths that nobody waits for, while
// collectives go on.
TEST("transfers: many in flight in all directions, beside collectives, do not hold each other up") {
  for (const Wire wire : kWires) {
    World world(4, {}, wire);
    world.run([&](int rank) {
      Engine& engine = world.engine(rank);
      constexpr size_t kCounts[] = {100'000, 3, 20'000, 2000};
      constexpr int kNumRounds = kSanitized ? 2 : 5;
      for (int round = 0; round < kNumRounds; ++round) {
        std::vector<std::shared_ptr<Operation>> operations;
        std::vector<std::vector<int32_t>> memory;
        memory.reserve(64);
        std::vector<std::pair<size_t, std::vector<int32_t>>> expected;
        std::vector<double> summed(50'000, rank + 1.0);
        auto sum = make_operation(OpKind::kAllreduce, "sum", {view(summed)}, {view(summed)});
        if (round % 2 == 0) engine.submit(sum);
        for (int distance = 1; distance < 4; ++distance) {
          const int to = (rank + distance) % 4;
          const int from = (rank + 4 - distance) % 4;
          for (int number = 0; number < 4; ++number) {
            const size_t count = kCounts[number];
            memory.push_back(values_of(rank, 10 * to + number, count));
            operations.push_back(make_transfer(OpKind::kSend, to, view(memory.back()), number % 2));
            memory.emplace_back(count);
            expected.emplace_back(memory.size() - 1, values_of(from, 10 * rank + number, count));
            operations.push_back(make_transfer(OpKind::kRecv, from, view(memory.back()), number % 2));
          }
        }
        for (const auto& operation : operations) engine.submit(operation);
        if (round % 2 == 1) engine.submit(sum);
        // Waits begin at different places on different ranks.
        for (size_t i = 0; i < operations.size(); ++i) {
          Operation& operation = *operations[(i + static_cast<size_t>(rank) * 5) % operations.size()];
          REQUIRE(engine.wait(operation, kPatience));
          REQUIRE(!operation.error());
        }
        REQUIRE(engine.wait(*sum, kPatience));
        CHECK_EQ(summed.back(), 10.0);
        for (const auto& [place, values] : expected) CHECK(memory[place] == values);
      }
    });
  }
}

TEST("transfers: thousands in both directions are done in order, whichever end submits first") {
  for (const Wire wire : {Wire::kMemory, Wire::kTinySockets, Wire::kHosts}) {
    World world(2, {}, wire);
    constexpr int kNum = kSanitized ? 200 : 2000;
    constexpr size_t kCount = 1500;  // too many to travel with the announcement
    world.run([&](int rank) {
      Engine& engine = world.engine(rank);
      std::vector<std::vector<int32_t>> memory;
      std::vector<std::shared_ptr<Operation>> operations;
      memory.reserve(size_t{2} * kNum);
      for (int number = 0; number < kNum; ++number) {
        memory.push_back(values_of(rank, number % 50, kCount));
        operations.push_back(make_transfer(OpKind::kSend, 1 - rank, view(memory.back())));
        memory.emplace_back(kCount);
        operations.push_back(make_transfer(OpKind::kRecv, 1 - rank, view(memory.back())));
      }
      // One end asks for everything before it sends anything.
      for (int half = 0; half < 2; ++half) {
        for (size_t i = 0; i < operations.size(); ++i) {
          if (rank == 0 ? half == 0 : static_cast<int>(i % 2) == 1 - half) engine.submit(operations[i]);
        }
      }
      for (size_t i = 0; i < operations.size(); ++i) {
        REQUIRE(engine.wait(*operations[i], kPatience));
        REQUIRE(!operations[i]->error());
        if (i % 2 == 1) CHECK(memory[i] == values_of(1 - rank, static_cast<int>(i / 2) % 50, kCount));
      }
    });
  }
}

TEST("transfers: those that wait for their turn fail with the rest") {
  World world(3);
  std::vector<std::vector<int32_t>> memory(100, std::vector<int32_t>(5000));
  std::vector<std::shared_ptr<Operation>> receives;
  for (auto& values : memory) {
    receives.push_back(make_transfer(OpKind::kRecv, 1, view(values)));
    world.engine(0).submit(receives.back());
  }
  std::vector<int32_t> sent = values_of(1, 1, 5000);
  std::vector<std::shared_ptr<Operation>> sends;
  for (size_t i = 0; i < memory.size(); ++i) {
    sends.push_back(make_transfer(OpKind::kSend, 0, view(sent)));
    world.engine(1).submit(sends.back());
  }
  world.engine(0).close("it is tired");
  for (const auto& receive : receives) CHECK(receive->done());
  for (const auto& send : sends) REQUIRE(world.engine(1).wait(*send, kPatience));
}

TEST("transfers: of one pair and tag they meet in order, and each tag is for itself") {
  World world(2);
  world.run([&](int rank) {
    Engine& engine = world.engine(rank);
    constexpr int kNum = 20;
    std::vector<std::vector<int32_t>> memory;
    std::vector<std::shared_ptr<Operation>> operations;
    for (int number = 0; number < kNum; ++number) {
      // The receiver asks for the last tags first.
      const int32_t tag = rank == 0 ? number % 4 : 3 - number % 4;
      memory.push_back(rank == 0 ? values_of(0, number, 5000) : std::vector<int32_t>(5000));
      operations.push_back(
          make_transfer(rank == 0 ? OpKind::kSend : OpKind::kRecv, 1 - rank, view(memory.back()), tag));
      engine.submit(operations.back());
    }
    for (const auto& operation : operations) {
      REQUIRE(engine.wait(*operation, kPatience));
      CHECK(!operation->error());
    }
    if (rank == 0) return;
    for (int number = 0; number < kNum; ++number) {
      CHECK(memory[static_cast<size_t>(number)] == values_of(0, number / 4 * 4 + 3 - number % 4, 5000));
    }
  });
}

TEST("transfers: in a process set they go by its ranks") {
  World world(4);
  world.run([&](int rank) {
    Engine& engine = world.engine(rank);
    auto change = make_operation(OpKind::kAddProcessSet, "process_set.change", {}, {});
    change->request.ranks = {1, 2, 3};
    run_operation(engine, change);
    if (rank == 0) return;
    std::vector<int32_t> values = rank == 3 ? values_of(3, 0, 3000) : std::vector<int32_t>(3000);
    if (rank == 2) return;
    auto transfer = make_transfer(rank == 3 ? OpKind::kSend : OpKind::kRecv, rank == 3 ? 1 : -1, view(values));
    transfer->request.process_set = change->result.new_process_set;
    run_operation(engine, transfer);
    if (rank == 1) CHECK_EQ(transfer->result.source, 2);  // rank 3 of the job
    if (rank == 1) CHECK(values == values_of(3, 0, 3000));
  });
}

TEST("transfers: what a rank cannot ask for is refused before anything is sent") {
  World world(2);
  Engine& engine = world.engine(0);
  std::vector<int32_t> values(4);
  CHECK(contains(error_text(engine, make_transfer(OpKind::kSend, 0, view(values))), "is this rank itself"));
  CHECK(contains(error_text(engine, make_transfer(OpKind::kRecv, 0, view(values))), "is this rank itself"));
  CHECK(contains(error_text(engine, make_transfer(OpKind::kSend, 2, view(values))), "is not a member"));
  CHECK(contains(error_text(engine, make_transfer(OpKind::kSend, -1, view(values))), "is not a member"));
  CHECK(contains(error_text(engine, make_transfer(OpKind::kSend, 1, view(values), -3)), "the tag is negative"));
  auto both = make_transfer(OpKind::kSend, 1, view(values));
  both->request.outputs = both->request.inputs;
  CHECK(contains(error_text(engine, both), "send takes one input"));
  Buffer on_gpu = view(values);
  on_gpu.device = 0;
  CHECK(contains(error_text(engine, make_transfer(OpKind::kRecv, 1, on_gpu)), "on the CPU"));
}

TEST("transfers: another length or dtype is an error of both ranks, and the next one works") {
  for (const size_t count : {size_t{10}, size_t{100'000}}) {
    World world(2);
    world.run([&](int rank) {
      Engine& engine = world.engine(rank);
      const OpKind kind = rank == 0 ? OpKind::kSend : OpKind::kRecv;
      std::vector<int32_t> values(count + static_cast<size_t>(rank), 5);
      const std::string text = error_text(engine, make_transfer(kind, 1 - rank, view(values)));
      CHECK(contains(text, "Mismatched numbers of elements"));
      CHECK(contains(text, "rank 0 submitted send to rank 1 with tag 0 of int32 [" + std::to_string(count) + "]"));
      CHECK(contains(text, "at send.py:1"));
      CHECK(contains(text, "at recv.py:2"));
      std::vector<float> floats(count, 1.0F);
      const Buffer other = rank == 0 ? view(values, {static_cast<int64_t>(count)}) : view(floats);
      CHECK(contains(error_text(engine, make_transfer(kind, 1 - rank, other)), "Mismatched data types"));
      CHECK_EQ(error_text(engine, make_transfer(kind, 1 - rank, view(values, {static_cast<int64_t>(count)}))),
               "no error");
    });
  }
}

TEST("transfers: the end of the peer ends them, and other pairs go on") {
  World world(3);
  std::vector<uint32_t> sets(3);
  world.run([&](int rank) {
    auto change = make_operation(OpKind::kAddProcessSet, "process_set.change", {}, {});
    change->request.ranks = {0, 1};
    run_operation(world.engine(rank), change);
    sets[static_cast<size_t>(rank)] = change->result.new_process_set;
  });
  std::vector<int32_t> values(3);
  auto waits = make_transfer(OpKind::kRecv, 2, view(values));
  world.engine(0).submit(waits);
  world.engine(2).close("it is tired");
  REQUIRE(world.engine(0).wait(*waits, kPatience));
  REQUIRE(waits->error().has_value());
  CHECK(contains(waits->error()->what(), "it is tired"));
  world.run([&](int rank) {
    if (rank == 2) return;
    std::vector<int32_t> mine(5000, rank);
    auto transfer = make_transfer(rank == 0 ? OpKind::kSend : OpKind::kRecv, 1 - rank, view(mine));
    transfer->request.process_set = sets[static_cast<size_t>(rank)];
    run_operation(world.engine(rank), transfer);
    CHECK_EQ(mine.back(), 0);
  });
}

TEST("transfers: a rank that is killed in the middle ends them on the other one") {
  for (const Wire wire : {Wire::kMemory, Wire::kTcp}) {
    for (const int victim : {0, 1}) {
      EngineOptions options;
      options.rank_names = {"host-0", "host-1"};
      Processes ranks(2, wire, options, [&](int rank, Engine& engine, const Processes::Say& say) {
        std::vector<int32_t> values(500'000, rank);
        for (int round = 0;; ++round) {
          const OpKind kind = rank == 0 ? OpKind::kSend : OpKind::kRecv;
          const std::string text = error_text(engine, make_transfer(kind, 1 - rank, view(values)));
          if (round == 0) say(text);
          if (text == "no error") continue;
          say(text);
          return;
        }
      });
      for (int rank = 0; rank < 2; ++rank) CHECK_EQ(ranks.read_line(rank, kPatience), "no error");
      ranks.signal(victim, SIGKILL);
      const std::string name = "rank " + std::to_string(victim) + " (host-" + std::to_string(victim) + ") was lost";
      CHECK(contains(ranks.read_line(1 - victim, kPatience), name));
    }
  }
}

TEST("transfers: a receive whose sender never comes is reported with rank and line") {
  for (const bool from_any : {false, true}) {
    Log log;
    EngineOptions options;
    options.rank_names = {"host-0", "host-1", "host-2"};
    options.log = log.sink();
    options.stall_check_time = std::chrono::milliseconds(20);
    options.stall_shutdown_time = std::chrono::milliseconds(600);
    World world(3, options);
    world.run([&](int rank) {
      Engine& engine = world.engine(rank);
      std::vector<int32_t> values(3);
      if (rank != 1) {  // submits nothing until it hears of the end
        const Operation nobodys;
        const auto until = std::chrono::steady_clock::now() + kPatience;
        while (!engine.error() && std::chrono::steady_clock::now() < until) {
          static_cast<void>(nobodys.wait_done(std::chrono::milliseconds(5)));
        }
        return;
      }
      const std::string text = error_text(engine, make_transfer(OpKind::kRecv, from_any ? -1 : 2, view(values)));
      CHECK(contains(text, "recv.1.1: submitted by rank 1 (host-1) at recv.py:2"));
      CHECK(contains(text, "\nrank 2 (host-2): [recv.1.1]"));
      CHECK_EQ(contains(text, "\nrank 0 (host-0): [recv.1.1]"), from_any);
    });
  }
}

TEST("operations: whoever wants to hear of the end hears of it once, before or behind it") {
  World world(2);
  for (int round = 0; round < 20; ++round) {
    std::atomic<int> told{0};
    std::vector<std::vector<int32_t>> memory(2, std::vector<int32_t>(round % 2 == 0 ? 3 : 5000));
    std::vector<std::shared_ptr<Operation>> operations;
    for (int rank = 0; rank < 2; ++rank) {
      const OpKind kind = rank == 0 ? OpKind::kSend : OpKind::kRecv;
      operations.push_back(make_transfer(kind, 1 - rank, view(memory[static_cast<size_t>(rank)])));
    }
    world.engine(0).submit(operations[0]);
    CHECK(operations[0]->notify([&, raw = operations[0].get()] { told += raw->done() ? 1 : 100; }));
    CHECK(!operations[0]->notify([&] { told += 100; }));
    CHECK(operations[0]->is_followed());
    world.engine(1).submit(operations[1]);
    CHECK(operations[1]->notify([&, raw = operations[1].get()] { told += raw->done() ? 1 : 100; }));
    for (int rank = 0; rank < 2; ++rank)
      REQUIRE(world.engine(rank).wait(*operations[static_cast<size_t>(rank)], kPatience));
    const auto until = std::chrono::steady_clock::now() + kPatience;
    while (told != 2 && std::chrono::steady_clock::now() < until) std::this_thread::yield();
    CHECK_EQ(told.load(), 2);
    CHECK(operations[0]->notify([&] { ++told; }));
    CHECK_EQ(told.load(), 3);
    CHECK(!operations[0]->is_followed());
  }
}

}  // namespace
}  // namespace hvd::testing
