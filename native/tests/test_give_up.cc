// Callers that wait no longer end the job, with the ranks that are missing.
#include <atomic>
#include <thread>

#include "engine/engine.h"
#include "testing/array.h"
#include "testing/check.h"
#include "testing/world.h"

namespace hvd::testing {
namespace {

constexpr Duration kSoon = std::chrono::seconds(30);

EngineOptions with_names(int size) {
  EngineOptions options;
  for (int rank = 0; rank < size; ++rank) options.rank_names.push_back("host-" + std::to_string(rank) + ":7");
  options.log = [](LogLevel, const std::string&) {};
  return options;
}

std::shared_ptr<Operation> make_sum(std::vector<double>& values, const std::string& name, int rank) {
  auto operation = make_operation(OpKind::kAllreduce, name, {view(values)}, {view(values)});
  operation->request.call_site = "train.py:" + std::to_string(rank + 10);
  return operation;
}

// How the operation ended.
std::string end_of(Engine& engine, Operation& operation) {
  if (!engine.wait(operation, kSoon)) return "no end";
  if (!operation.error()) return "no error";
  CHECK(operation.error()->kind() == ErrorKind::kStalled);
  return operation.error()->what();
}

void wait_for(const std::atomic<int>& count, int wanted) {
  const TimePoint until = std::chrono::steady_clock::now() + kSoon;
  while (count < wanted && std::chrono::steady_clock::now() < until) std::this_thread::yield();
}

// All ranks raise what the coordinator knows, whoever loses patience, and whoever is missing.
void give_up(Wire wire, int impatient, int missing) {
  World world(4, with_names(4), wire);
  std::atomic<int> submitted{0};
  std::atomic<bool> ended{false};
  world.run([&](int rank) {
    Engine& engine = world.engine(rank);
    std::vector<double> first(3, 1.0);
    run_operation(engine, make_sum(first, "first", rank));
    std::vector<double> values(4000, 1.0);
    const auto sum = make_sum(values, "second", rank);
    if (rank == missing) {
      const TimePoint until = std::chrono::steady_clock::now() + kSoon;
      while (!ended && std::chrono::steady_clock::now() < until) std::this_thread::yield();
    } else {
      engine.submit(sum);
      ++submitted;
      if (rank == impatient) {
        wait_for(submitted, 3);
        // What others submitted may not have arrived yet.
        std::vector<double> later(3, 1.0);
        CHECK(!engine.wait(*sum, std::chrono::milliseconds(200)));
        engine.give_up(sum, "second of group 5 took longer than 1 s.");
      }
    }
    std::string text;
    if (rank == missing) {
      try {
        engine.submit(sum);
        text = end_of(engine, *sum);
      } catch (const Error& error) {
        text = error.what();
      }
    } else {
      text = end_of(engine, *sum);
    }
    if (rank == impatient) ended = true;
    CHECK(contains(text, "second of group 5 took longer than 1 s.\n"));
    const std::string lacks = "rank " + std::to_string(missing) + " (host-" + std::to_string(missing) + ":7)";
    CHECK(contains(text, "Missing ranks:\n" + lacks + ": [second]\n  It last submitted first at train.py:"));
    for (int other = 0; other < 4; ++other) {
      const std::string site = "(host-" + std::to_string(other) + ":7) at train.py:" + std::to_string(other + 10);
      if (other != missing) CHECK(contains(text, site));
    }
  });
}

TEST("give up: all ranks raise an error that names the missing rank and the lines of the others") {
  for (const Wire wire : {Wire::kMemory, Wire::kSockets, Wire::kHosts}) {
    give_up(wire, 1, 3);
    give_up(wire, 0, 2);
    give_up(wire, 2, 0);
  }
}

// A world of three ranks of which one drives nothing from the moment that `held` says so until it is released: its
// engine's thread is in a callback, and no other thread of it waits.
class HeldWorld {
 public:
  explicit HeldWorld(int rank) : world(3, options()), held_rank_(rank) {}

  // What that rank does: submits `operations`, so that the coordinator knows of them, and holds still.
  void hold(const std::vector<std::shared_ptr<Operation>>& operations) {
    hold_ = make_sum(values_, "hold", held_rank_);
    hold_->request.on_done = [this] {
      held = 1;
      wait_for(released, 1);
    };
    // Few values travel with the announcement, so that the others need nothing more of this rank.
    for (const auto& operation : operations) submit_to(world.engine(held_rank_), operation, true);
    world.engine(held_rank_).submit(hold_);
    wait_for(held, 1);
  }

  // What the others do first.
  void await_hold(int rank) {
    std::vector<double> values(3, 1.0);
    run_operation(world.engine(rank), make_sum(values, "hold", rank));
    wait_for(held, 1);
  }

  World world;
  std::atomic<int> held{0};
  std::atomic<int> done{0};
  std::atomic<int> released{0};

 private:
  static EngineOptions options() {
    EngineOptions options = with_names(3);
    options.fusion_threshold = 1;
    return options;
  }

  const int held_rank_;
  std::vector<double> values_ = std::vector<double>(3, 1.0);
  std::shared_ptr<Operation> hold_;
};

TEST("give up: an operation without room names what is executed before it, and whose data that lacks") {
  for (const int impatient : {0, 2}) {
    HeldWorld held(1);
    held.world.run([&](int rank) {
      Engine& engine = held.world.engine(rank);
      std::vector<std::vector<double>> values(3, std::vector<double>(40000, 1.0));
      std::vector<std::shared_ptr<Operation>> sums;
      for (size_t i = 0; i < values.size(); ++i) {
        sums.push_back(make_sum(values[i], std::string(1, static_cast<char>('a' + i)), rank));
      }
      if (rank == 1) {
        held.hold(sums);
        wait_for(held.done, 2);
        held.released = 1;
        CHECK(contains(end_of(engine, *sums.back()), "All ranks have submitted c"));
        return;
      }
      held.await_hold(rank);
      for (int i = 0; i < 2; ++i) engine.submit(sums[static_cast<size_t>(i)]);
      CHECK(!engine.wait(*sums[1], std::chrono::milliseconds(200)));  // both are executed now
      engine.submit(sums[2]);
      if (rank == impatient) {
        CHECK(!engine.wait(*sums[2], std::chrono::milliseconds(200)));
        engine.give_up(sums[2], "c took longer than 1 s.");
      }
      const std::string text = end_of(engine, *sums[2]);
      ++held.done;
      CHECK(contains(text,
                     "c took longer than 1 s.\nAll ranks have submitted c, but it has not begun: a at train.py:10"));
      CHECK(contains(text, " and 1 more are executed before it, and rank 0 (host-0:7) waits for data of "));
      CHECK(contains(text, "rank 1 (host-1:7)"));
      CHECK(!contains(text, "does not answer"));
    });
  }
}

TEST("give up: a send without room names the rank to which others are under way") {
  HeldWorld held(1);
  constexpr size_t kMany = 20;
  held.world.run([&](int rank) {
    Engine& engine = held.world.engine(rank);
    std::vector<std::vector<double>> values(kMany, std::vector<double>(200000, 1.0));
    std::vector<std::shared_ptr<Operation>> transfers;
    for (size_t i = 0; i < kMany; ++i) {
      const bool receives = rank == 1;
      transfers.push_back(receives ? make_operation(OpKind::kRecv, "t", {}, {view(values[i])})
                                   : make_operation(OpKind::kSend, "t", {view(values[i])}, {}));
      transfers.back()->request.root = receives ? 2 : 1;
    }
    if (rank == 1) {
      held.hold(transfers);
      wait_for(held.done, 2);
      held.released = 1;
      CHECK(contains(end_of(engine, *transfers.back()), "too long."));
      return;
    }
    held.await_hold(rank);
    if (rank == 2) {
      for (const auto& transfer : transfers) engine.submit(transfer);
      CHECK(!engine.wait(*transfers.back(), std::chrono::milliseconds(200)));
      engine.give_up(transfers.back(), "too long.");
      CHECK(contains(end_of(engine, *transfers.back()),
                     "too long.\nrank 1 (host-1:7) has submitted its part of t.2.20, which waits until earlier "
                     "transfers between rank 1 (host-1:7) and rank 2 (host-2:7) have ended"));
    }
    ++held.done;
  });
}

TEST("give up: one that crosses its answer does not end the next operation of the same name") {
  HeldWorld held(2);
  held.world.run([&](int rank) {
    Engine& engine = held.world.engine(rank);
    std::vector<double> first_values(3, 1.0);
    std::vector<double> next_values(3, 1.0);
    const auto first = make_sum(first_values, "x", rank);
    const auto next = make_sum(next_values, "x", rank);
    if (rank == 2) {
      held.hold({first});
      wait_for(held.done, 2);
      engine.give_up(first, "too long.");
      held.released = 1;
      CHECK(engine.wait(*first, kSoon) && !first->error());
      run_operation(engine, next);
    } else {
      held.await_hold(rank);
      run_operation(engine, first);
      engine.submit(next);
      CHECK(!engine.wait(*next, std::chrono::milliseconds(100)));  // the coordinator knows of it
      ++held.done;
      CHECK(engine.wait(*next, kSoon) && !next->error());
    }
    CHECK_EQ(next_values.front(), 3.0);
  });
}

TEST("give up: what it lacks may come in the same moment") {
  for (const int impatient : {0, 1, 2}) {
    HeldWorld held(0);  // the coordinator, which then reads in one pass all that was sent meanwhile
    held.world.run([&](int rank) {
      Engine& engine = held.world.engine(rank);
      std::vector<double> values(3, 1.0);
      const auto sum = make_sum(values, "x", rank);
      if (rank == 0) {
        held.hold({sum});
        wait_for(held.done, 2);
        if (rank == impatient) engine.give_up(sum, "too long.");
        held.released = 1;
      } else {
        held.await_hold(rank);
        engine.submit(sum);
        CHECK(!engine.wait(*sum, std::chrono::milliseconds(100)));
        if (rank == impatient) engine.give_up(sum, "too long.");
        CHECK(!engine.wait(*sum, std::chrono::milliseconds(100)));
        ++held.done;
      }
      CHECK(engine.wait(*sum, kSoon) && !sum->error());
      CHECK_EQ(values.front(), 3.0);
    });
  }
}

TEST("give up: a receive names its sender") {
  World world(3, with_names(3));
  std::vector<double> values(3);
  auto receive = make_operation(OpKind::kRecv, "r", {}, {view(values)});
  receive->request.root = 2;
  world.engine(1).submit(receive);
  world.engine(1).give_up(receive, "too long.");
  const std::string text = end_of(world.engine(1), *receive);
  CHECK(contains(text, "too long.\n"));
  CHECK(contains(text, "Missing ranks:\nrank 2 (host-2:7): ["));
  CHECK(contains(text, "It has submitted nothing to this process set yet"));
}

TEST("give up: an operation that has ended, or ends first, is no reason") {
  World world(2, with_names(2));
  world.run([&](int rank) {
    Engine& engine = world.engine(rank);
    for (int round = 0; round < 20; ++round) {
      std::vector<double> values(round % 2 == 0 ? 3 : 5000, 1.0);
      const auto sum = make_sum(values, "x", rank);
      run_operation(engine, sum);
      engine.give_up(sum, "too long.");
    }
    CHECK(!engine.error());
  });
}

}  // namespace
}  // namespace hvd::testing
