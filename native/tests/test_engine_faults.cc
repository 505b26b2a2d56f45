// Ranks that go: with a goodbye, or without one.
#include <sys/syscall.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <thread>

#include "engine/engine.h"
#include "testing/array.h"
#include "testing/check.h"
#include "testing/processes.h"
#include "testing/world.h"

namespace hvd::testing {
namespace {

constexpr Duration kPatience = std::chrono::seconds(kSanitized ? 20 : 10);
constexpr Duration kPrompt = std::chrono::seconds(2);

EngineOptions with_names(int size) {
  EngineOptions options;
  for (int rank = 0; rank < size; ++rank) options.rank_names.push_back("host-" + std::to_string(rank));
  return options;
}

std::string text_of(const Error& error) {
  return std::string(error.kind() == ErrorKind::kPeerLost   ? "lost: "
                     : error.kind() == ErrorKind::kShutDown ? "shut down: "
                                                            : "other: ") +
         error.what();
}

// Sums `count` elements; the error as text, or "fine".
std::string try_sum(Engine& engine, const std::string& name, int64_t count) {
  Array array = samples(DType::kFloat32, ReduceOp::kSum, engine.rank(), {count});
  try {
    run_operation(engine, make_allreduce(name, {array.view()}, {array.view()}));
  } catch (const Error& error) {
    return text_of(error);
  }
  return array.get(1) == reduced(DType::kFloat32, ReduceOp::kSum, engine.size(), 1) ? "fine" : "wrong";
}

// Works until that fails, and says how it failed: now, and from then on.
void work(Engine& engine, const Processes::Say& say, int64_t count) {
  std::string outcome = try_sum(engine, "first", count);
  say(outcome);
  for (int round = 0; outcome == "fine"; ++round) outcome = try_sum(engine, "x" + std::to_string(round % 3), count);
  say(outcome);
  say(try_sum(engine, "later", 3));
}

void check_lost(Processes& ranks, int size, int victim) {
  const std::string name = "rank " + std::to_string(victim) + " (host-" + std::to_string(victim) + ") was lost";
  const auto start = std::chrono::steady_clock::now();
  for (int rank = 0; rank < size; ++rank) {
    if (rank == victim) continue;
    for (const char* when : {"pending", "later"}) {
      const std::string line = ranks.read_line(rank, kPatience);
      if (contains(line, "lost: ") && contains(line, name)) continue;
      report(__FILE__, __LINE__,
             std::string(when) + " operation of rank " + std::to_string(rank) + ": \"" + line + "\"");
    }
  }
  CHECK(std::chrono::steady_clock::now() - start < kPrompt);
}

TEST("faults: a process that dies at work is named by all others, at once") {
  for (const Wire wire : {Wire::kMemory, Wire::kSockets, Wire::kTcp}) {
    for (const int victim : {0, 1, 2}) {
      for (const int64_t count : {int64_t{10}, int64_t{400'000}, int64_t{4'000'000}}) {
        if (count > 1'000'000 && (wire != Wire::kTcp || kSanitized)) continue;
        const int size = 3;
        Processes ranks(size, wire, with_names(size),
                        [&](int, Engine& engine, const Processes::Say& say) { work(engine, say, count); });
        for (int rank = 0; rank < size; ++rank) CHECK_EQ(ranks.read_line(rank, kPatience), "fine");
        ranks.signal(victim, SIGKILL);
        check_lost(ranks, size, victim);
      }
    }
  }
}

TEST("faults: a process that dies while the others wait for it") {
  for (const Wire wire : {Wire::kMemory, Wire::kSockets}) {
    for (const int victim : {0, 2}) {
      const int size = 3;
      Processes ranks(size, wire, with_names(size), [&](int rank, Engine& engine, const Processes::Say& say) {
        say(try_sum(engine, "first", 10));
        if (rank == victim) pause();
        say(try_sum(engine, "waiting", 5000));
        say(try_sum(engine, "later", 3));
      });
      for (int rank = 0; rank < size; ++rank) CHECK_EQ(ranks.read_line(rank, kPatience), "fine");
      CHECK_EQ(ranks.read_line(1, std::chrono::milliseconds(50)), "");  // it waits
      ranks.signal(victim, SIGKILL);
      check_lost(ranks, size, victim);
    }
  }
}

TEST("faults: a process that dies while all are idle") {
  for (const Wire wire : {Wire::kMemory, Wire::kSockets}) {
    const int size = 3;
    Processes ranks(size, wire, with_names(size), [&](int, Engine& engine, const Processes::Say& say) {
      say(try_sum(engine, "first", 10));
      auto nothing = make_operation(OpKind::kBarrier, "nothing", {}, {});
      while (!engine.error()) static_cast<void>(nothing->wait_done(std::chrono::milliseconds(5)));
      say(text_of(*engine.error()));
      say(try_sum(engine, "later", 3));
    });
    for (int rank = 0; rank < size; ++rank) CHECK_EQ(ranks.read_line(rank, kPatience), "fine");
    ranks.signal(1, SIGKILL);
    check_lost(ranks, size, 1);
  }
}

TEST("faults: two processes die, one after the other") {
  const int size = 4;
  Processes ranks(size, Wire::kMemory, with_names(size),
                  [&](int, Engine& engine, const Processes::Say& say) { work(engine, say, 1000); });
  for (int rank = 0; rank < size; ++rank) CHECK_EQ(ranks.read_line(rank, kPatience), "fine");
  ranks.signal(3, SIGKILL);
  CHECK(contains(ranks.read_line(1, kPatience), "rank 3"));
  ranks.signal(0, SIGKILL);
  CHECK(contains(ranks.read_line(1, kPatience), "rank 3"));
  for (int line = 0; line < 2; ++line) CHECK(contains(ranks.read_line(2, kPatience), "rank 3"));
}

// In one process nobody can tell which side of a broken connection is to blame, but the end must come.
TEST("faults: broken connections end all operations on all ranks, and closing is quick") {
  for (const Wire wire : {Wire::kMemory, Wire::kSockets, Wire::kTinySockets}) {
    for (const int64_t count : {int64_t{10}, int64_t{1'000'000}}) {
      const int size = 3;
      World world(size, with_names(size), wire, 1);
      std::atomic<int> num_started{0};
      world.run([&](int rank) {
        Engine& engine = world.engine(rank);
        std::string outcome = "fine";
        for (int round = 0; outcome == "fine"; ++round) {
          outcome = try_sum(engine, "x" + std::to_string(round % 2), count);
          if (round == 2 && ++num_started == size) world.kill_victim();
        }
        CHECK(contains(outcome, "lost: "));
        CHECK(contains(try_sum(engine, "later", 3), "lost: "));
        const auto start = std::chrono::steady_clock::now();
        engine.close("the test ends");
        CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(1));
      });
    }
  }
}

TEST("faults: a rank that closes is named with its reason, what was finished stays so") {
  for (const Wire wire : {Wire::kMemory, Wire::kSockets, Wire::kTcp}) {
    for (const int leaver : {0, 1}) {
      const int size = 3;
      World world(size, with_names(size), wire);
      world.run([&](int rank) {
        Engine& engine = world.engine(rank);
        CHECK_EQ(try_sum(engine, "together", 5000), "fine");
        if (rank == leaver) {
          engine.close("its work is done");
          CHECK(contains(try_sum(engine, "afterward", 3), "shut down: "));
          return;
        }
        for (int round = 0; round < 3; ++round) {
          const std::string outcome = try_sum(engine, "x", round == 1 ? 5000 : 3);
          CHECK(contains(outcome, "shut down: "));
          CHECK(contains(outcome, "rank " + std::to_string(leaver) + " (host-" + std::to_string(leaver) + ")"));
          CHECK(contains(outcome, "its work is done"));
        }
      });
    }
  }
}

// The coordinator leaves because another rank did, and its goodbye is read first.
TEST("faults: a rank that comes late hears of the first rank that left, not of one that followed") {
  for (const Wire wire : {Wire::kMemory, Wire::kSockets, Wire::kTcp}) {
    const int size = 3;
    World world(size, with_names(size), wire);
    world.engine(1).close("it raised ValueError");
    const std::string follower = try_sum(world.engine(0), "x", 3);
    CHECK(contains(follower, "rank 1 (host-1) has shut Horovod down (it raised ValueError)"));
    world.engine(0).close("it raised ShutDownError");
    for (int round = 0; round < 3; ++round) {
      const std::string late = try_sum(world.engine(2), "x", 3);
      CHECK(contains(late, "shut down: "));
      CHECK(contains(late, "rank 1 (host-1) has shut Horovod down (it raised ValueError)"));
      CHECK(!contains(late, "rank 0 (host-0)"));
    }
  }
}

// The root is done when its data are on their way. It may go then: the others must still get all of it.
TEST("faults: a rank that closes early takes nothing from the operations it has done") {
  for (const Wire wire : {Wire::kMemory, Wire::kSockets, Wire::kTinySockets, Wire::kTcp}) {
    for (int round = 0; round < (wire == Wire::kTinySockets ? 1 : kSanitized ? 3 : 10); ++round) {
      const int size = 3;
      World world(size, {}, wire);
      world.run([&](int rank) {
        Array array = samples(DType::kFloat32, ReduceOp::kSum, rank, {300'000});
        auto operation = make_operation(OpKind::kBroadcast, "x", {array.view()}, {array.view()});
        operation->request.root = 2;
        run_operation(world.engine(rank), operation);
        world.engine(rank).close("done");
        CHECK(array.bytes() == samples(DType::kFloat32, ReduceOp::kSum, 2, {300'000}).bytes());
      });
    }
  }
}

// Nobody on that rank waits for the result, but the other ranks need its values.
TEST("faults: a rank that closes takes part to the end in what all have begun") {
  for (const Wire wire : {Wire::kMemory, Wire::kSockets, Wire::kTinySockets, Wire::kTcp}) {
    for (int round = 0; round < (wire == Wire::kTinySockets ? 1 : kSanitized ? 3 : 10); ++round) {
      const int size = 3;
      World world(size, {}, wire);
      world.run([&](int rank) {
        Engine& engine = world.engine(rank);
        Array array(DType::kFloat32, {300'000});
        auto operation = make_allreduce("x", {array.view()}, {array.view()});
        engine.submit(operation);
        if (rank == 1) {
          while (engine.statistics().batches == 0 && !operation->wait_done(std::chrono::milliseconds(1))) continue;
          engine.close("it needs no result");
        }
        REQUIRE(engine.wait(*operation, kPatience));
        CHECK(!operation->error().has_value());
      });
    }
  }
}

TEST("faults: close ends what is in flight, also for a caller that drives") {
  for (const Wire wire : {Wire::kMemory, Wire::kSockets}) {
    for (int round = 0; round < (kSanitized ? 10 : 40); ++round) {
      World world(2, with_names(2), wire);
      Engine& engine = world.engine(0);
      Array array(DType::kFloat32, {round % 2 == 0 ? 3 : 5000});
      auto operation = make_allreduce("alone", {array.view()}, {array.view()});
      submit_to(engine, operation, round % 4 < 2);
      std::atomic<bool> ended{false};
      std::thread waiter([&] { ended = engine.wait(*operation, std::chrono::seconds(20)); });
      if (round % 3 == 0) static_cast<void>(operation->wait_done(std::chrono::milliseconds(2)));
      const auto start = std::chrono::steady_clock::now();
      engine.close("the user wants it");
      CHECK(std::chrono::steady_clock::now() - start < kPrompt);
      waiter.join();
      CHECK(ended);
      REQUIRE(operation->error().has_value());
      CHECK(operation->error()->kind() == ErrorKind::kShutDown);
      CHECK(contains(operation->error()->what(), "the user wants it"));
    }
  }
}

void close_epoll_descriptors() {
  std::vector<int> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;  // as the descriptor of the folder itself is
    const std::string target = std::filesystem::read_symlink(entry.path(), gone).string();
    if (contains(target, "[eventpoll]")) found.push_back(std::stoi(entry.path().filename().string()));
  }
  // Under the engine, on purpose: ThreadSanitizer would call it a race.
  for (const int fd : found) syscall(SYS_close, fd);
}

TEST("faults: a failed engine that cannot look at its connections any more sleeps until it is closed") {
  const int size = 2;
  Processes ranks(size, Wire::kTcp, with_names(size), [&](int rank, Engine& engine, const Processes::Say& say) {
    say(try_sum(engine, "first", 10));
    if (rank == 0) close_epoll_descriptors();
    say(try_sum(engine, "second", 10) == "fine" ? "fine" : "failed");
    if (rank == 1) return;
    const uint64_t before = engine.statistics().passes;
    const Operation nobodys;
    static_cast<void>(nobodys.wait_done(std::chrono::milliseconds(300)));
    const uint64_t passes = engine.statistics().passes - before;
    say(passes < 100 ? "sleeps" : std::to_string(passes) + " passes");
    engine.close("the test ends");
    say("closed");
  });
  for (int rank = 0; rank < size; ++rank) {
    CHECK_EQ(ranks.read_line(rank, kPatience), "fine");
    CHECK_EQ(ranks.read_line(rank, kPatience), "failed");
  }
  CHECK_EQ(ranks.read_line(0, kPatience), "sleeps");
  CHECK_EQ(ranks.read_line(0, kPrompt), "closed");
}

TEST("faults: engines that are destroyed with operations in flight") {
  for (const Wire wire : {Wire::kMemory, Wire::kSockets}) {
    for (int round = 0; round < 5; ++round) {
      std::vector<std::unique_ptr<Array>> arrays;
      std::vector<std::shared_ptr<Operation>> operations;
      {
        World world(3, {}, wire);
        for (int rank = 0; rank < 3; ++rank) {
          for (const char* name : {"x", "y"}) {
            if (rank == 1 && round % 2 == 0) continue;
            Array& array = *arrays.emplace_back(std::make_unique<Array>(DType::kFloat32, Shape{300'000}));
            operations.push_back(make_allreduce(name, {array.view()}, {array.view()}));
            world.engine(rank).submit(operations.back());
          }
        }
      }
      for (const auto& operation : operations) CHECK(operation->done());
    }
  }
}

}  // namespace
}  // namespace hvd::testing
