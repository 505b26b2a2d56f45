#include <mutex>

#include "engine/watch/stall_report.h"
#include "testing/array.h"
#include "testing/check.h"
#include "testing/log.h"
#include "testing/world.h"

namespace hvd::testing {
namespace {

std::string rank_name(int rank) { return "rank " + std::to_string(rank); }

TEST("stall report: who waits where, who is missing and what it does") {
  std::vector<Stall> stalls(2);
  stalls[0] = {.name = "grad.1", .waiting = {0, 2}, .call_sites = {"a.py:3", "a.py:3"}, .missing = {1, 3}, .age = {}};
  stalls[1] = {.name = "grad.2", .waiting = {0, 3}, .call_sites = {"a.py:3", "a.py:8"}, .missing = {1}, .age = {}};
  std::map<int, PositionReport> positions;
  positions[1].operations = "last submitted x";
  positions[1].activity = "sleeps";
  positions[1].stacks = "frame\nother\n";
  positions[3].activity = "is stopped";
  CHECK_EQ(stall_report("Headline.", stalls, positions, rank_name),
           "Headline.\n"
           "  grad.1: submitted by rank 0, rank 2 at a.py:3\n"
           "  grad.2: submitted by rank 0 at a.py:3; rank 3 at a.py:8\n"
           "Missing ranks:\n"
           "rank 1: [grad.1, grad.2]\n"
           "  It sleeps.\n"
           "  It last submitted x.\n"
           "    frame\n"
           "    other\n"
           "rank 3: [grad.1]\n"
           "  It is stopped.");
}

TEST("stall report: many operations and ranks are cut short") {
  std::vector<Stall> stalls(20);
  for (size_t i = 0; i < stalls.size(); ++i) {
    stalls[i].name = "t" + std::to_string(i);
    for (int rank = 1; rank < 30; ++rank) {
      stalls[i].waiting.push_back(rank);
      stalls[i].call_sites.emplace_back("a.py:1");
    }
    stalls[i].missing = {0};
  }
  const std::string text = stall_report("H.", stalls, {}, rank_name);
  CHECK(contains(text, "rank 8 and 21 more at a.py:1"));
  CHECK(contains(text, "and 14 more operations"));
  CHECK(contains(text, "rank 0: [t0, t1, t2, t3, t4, t5, …]"));
}

// Ranks 0 and 2 wait for a, rank 1, after `late`, for b; then all come with the other one. Returns what was logged.
std::string log_of_crosswise_waits(Wire wire, EngineOptions options, Duration late) {
  Log log;
  options.log = log.sink();
  World world(3, options, wire);
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  const auto is_told = [&] {
    const std::lock_guard lock(log.mutex);
    return std::any_of(log.lines.begin(), log.lines.end(),
                       [](const std::string& line) { return contains(line, "Ranks wait for each other"); });
  };
  world.run([&](int rank) {
    Engine& engine = world.engine(rank);
    if (rank == 1) std::this_thread::sleep_for(late);
    Array values(DType::kFloat32, {3});
    auto first = make_operation(OpKind::kAllreduce, rank == 1 ? "b" : "a", {values.view()}, {values.view()});
    first->request.call_site = "train.py:" + std::to_string(10 + rank);
    submit_to(engine, first, true);
    while (!engine.wait(*first, std::chrono::milliseconds(200)) && std::chrono::steady_clock::now() < until) {
      if (is_told()) break;
    }
    Array more(DType::kFloat32, {3});
    auto second = make_operation(OpKind::kAllreduce, rank == 1 ? "a" : "b", {more.view()}, {more.view()});
    engine.submit(second);
    CHECK(engine.wait(*first, std::chrono::seconds(20)));
    CHECK(engine.wait(*second, std::chrono::seconds(20)));
  });
  const std::lock_guard lock(log.mutex);
  std::string text;
  for (const std::string& line : log.lines) text += line + "\n";
  return text;
}

int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

TEST("stalls: ranks that wait for each other are told of at once, with nothing set") {
  for (const Wire wire : {Wire::kMemory, Wire::kSockets}) {
    const std::string text = log_of_crosswise_waits(wire, {}, Duration::zero());
    CHECK_EQ(count(text, "Ranks wait for each other"), 1);
    CHECK_EQ(count(text, "Operations have waited"), 0);
    CHECK(contains(text, "a: submitted by rank 0 at train.py:10; rank 2 at train.py:12"));
    CHECK(contains(text, "b: submitted by rank 1 at train.py:11"));
    CHECK(contains(text, "rank 1: [a]"));
    CHECK(contains(text, "It waits for b at train.py:11"));
    CHECK(contains(text, "rank 0: [b]"));
  }
}

TEST("stalls: ranks that come to wait for each other late are told of, too, also if a rank was missing before") {
  EngineOptions options;
  CHECK_EQ(count(log_of_crosswise_waits(Wire::kMemory, options, std::chrono::seconds(1)), "Ranks wait for"), 1);
  options.stall_check_time = std::chrono::milliseconds(300);
  const std::string text = log_of_crosswise_waits(Wire::kMemory, options, std::chrono::seconds(1));
  CHECK_EQ(count(text, "Operations have waited"), 1);
  CHECK_EQ(count(text, "Ranks wait for each other"), 1);
}

TEST("stalls: a rank that is late but not blocked is no deadlock") {
  Log log;
  EngineOptions options;
  options.log = log.sink();
  World world(2, options);
  Array values(DType::kFloat32, {3});
  auto operation = make_operation(OpKind::kAllreduce, "x", {values.view()}, {values.view()});
  submit_to(world.engine(0), operation, true);
  CHECK(!world.engine(0).wait(*operation, std::chrono::milliseconds(1500)));
  CHECK(log.lines.empty());
}

TEST("position: answers come from the watcher, or say nothing without one") {
  const auto start = std::chrono::steady_clock::now();
  Position unwatched{StackDump()};
  unwatched.request(start);
  CHECK(!unwatched.take(start));
  const auto report = unwatched.take(start + std::chrono::milliseconds(150));
  REQUIRE(report.has_value());
  CHECK(contains(report->activity, "% of a core"));
  CHECK(report->stacks.empty());

  Position watched{StackDump()};
  CHECK(!watched.wait_for_request(std::chrono::milliseconds(1)));
  watched.request(start);
  CHECK(watched.wait_for_request(std::chrono::seconds(5)));
  CHECK(!watched.take(start + std::chrono::milliseconds(150)));
  watched.answer("main.py:7", {});
  const auto answered = watched.take(start + std::chrono::milliseconds(200));
  REQUIRE(answered.has_value());
  CHECK_EQ(answered->stacks, "main.py:7");
  watched.close();
  watched.request(start);
  CHECK(!watched.wait_for_request(std::chrono::seconds(5)));
}

}  // namespace
}  // namespace hvd::testing
