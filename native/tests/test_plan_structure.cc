// What must hold for plans of any size, checked without data; and what the planner refuses.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/error.h"
#include "plan/plan.h"
#include "testing/check.h"

namespace hvd::testing {
namespace {

using Counts = std::vector<int64_t>;
using Planner = std::function<Plan(const PlanContext&)>;

// One end of a frame's way: lane, sender, receiver, elements, and the how-manieth of those on this way in this lane.
using Hop = std::tuple<uint32_t, int, int, int64_t>;

struct Hops {
  std::vector<Hop> sent;
  std::vector<Hop> received;
};

void add_hops(const Plan& plan, int rank, int64_t chunk, Hops& hops) {
  int64_t previous = -1;
  for (const Lane& lane : plan.lanes) {
    REQUIRE(previous < lane.number);
    REQUIRE(!lane.steps.empty());
    previous = lane.number;
    for (const Step& step : lane.steps) {
      const int64_t size = step.range.size();
      REQUIRE(size > 0 && size <= chunk);
      REQUIRE(!step.receive_from.empty() || step.with_own);
      REQUIRE(!step.with_own || step.source.size() == size);
      for (const int peer : step.send_to) hops.sent.emplace_back(lane.number, rank, peer, size);
      for (const int peer : step.receive_from) hops.received.emplace_back(lane.number, peer, rank, size);
    }
  }
}

// Each frame that a rank sends is received in the same lane, with the same size, by the rank that it is sent to.
// Ranks that are not a multiple of `stride` have no part.
void check_hops(int size, int64_t chunk, const Planner& planner, int stride = 1) {
  Hops hops;
  for (int rank = 0; rank < size; rank += stride) {
    add_hops(planner({.rank = rank, .size = size, .chunk = chunk}), rank, chunk, hops);
  }
  std::sort(hops.sent.begin(), hops.sent.end());
  std::sort(hops.received.begin(), hops.received.end());
  CHECK(!hops.sent.empty());
  CHECK(hops.sent == hops.received);
  const auto to_itself = [](const Hop& hop) { return std::get<1>(hop) == std::get<2>(hop); };
  CHECK(std::none_of(hops.sent.begin(), hops.sent.end(), to_itself));
}

void check_refused(const std::function<void()>& plan, ErrorKind kind, const std::string& words) {
  try {
    plan();
  } catch (const Error& error) {
    CHECK(error.kind() == kind);
    CHECK(std::string(error.what()).find(words) != std::string::npos);
    return;
  }
  CHECK(!"refused");
}

// Few blocks that are not empty, so that a thousand ranks do not make millions of frames.
Counts sparse_counts(int size) {
  Counts counts(static_cast<size_t>(size), 0);
  counts[1] = 1;
  counts[static_cast<size_t>(size) / 2] = 5;
  counts.back() = 4;
  return counts;
}

TEST("plan: shares differ by at most one and cover everything") {
  for (const int size : {1, 2, 3, 7, 64}) {
    for (const int64_t count : {0, 1, 6, 63, 64, 65, 1009}) {
      int64_t end = 0;
      for (int rank = 0; rank < size; ++rank) {
        const Range share = share_of(count, rank, size);
        CHECK_EQ(share.begin, end);
        CHECK(share.size() == count / size || (share.size() == count / size + 1 && rank < count % size));
        end = share.end;
      }
      CHECK_EQ(end, count);
    }
  }
}

TEST("plan: allreduce of hundreds of ranks") {
  for (const Algorithm algorithm : {Algorithm::kDirect, Algorithm::kRing}) {
    check_hops(256, 2, [=](const PlanContext& context) { return plan_allreduce(context, algorithm, 60); });
    check_hops(1024, 3, [=](const PlanContext& context) { return plan_allreduce(context, algorithm, 20); });
  }
}

TEST("plan: reducescatter and allgather of hundreds of ranks") {
  for (const int size : {256, 1024}) {
    const Counts counts = sparse_counts(size);
    for (const Algorithm algorithm : {Algorithm::kDirect, Algorithm::kRing}) {
      check_hops(size, 2, [&](const PlanContext& context) { return plan_reducescatter(context, algorithm, counts); });
      check_hops(size, 2, [&](const PlanContext& context) { return plan_allgather(context, algorithm, counts); });
    }
  }
}

TEST("plan: broadcast of hundreds of ranks takes logarithmic fan-out") {
  for (const int size : {256, 1024, 1000}) {
    check_hops(size, 2, [](const PlanContext& context) { return plan_broadcast(context, 100, 5); });
    const Plan root = plan_broadcast({.rank = 100, .size = size, .chunk = 2}, 100, 5);
    for (const Lane& lane : root.lanes) CHECK(lane.steps.front().send_to.size() <= 10);
  }
}

// Each plan looks at the whole matrix, so of a thousand ranks only some are planned.
TEST("plan: alltoall of hundreds of ranks") {
  for (const auto& [size, stride] : {std::pair{256, 4}, std::pair{1024, 64}}) {
    const auto ranks = static_cast<size_t>(size);
    std::vector<Counts> counts(ranks, Counts(ranks, 0));
    for (size_t from = 0; from < ranks; from += static_cast<size_t>(stride)) {
      for (size_t to = 0; to < ranks; to += static_cast<size_t>(stride)) {
        counts[from][to] = static_cast<int64_t>(from + to * 3) % 5;
      }
    }
    const Planner planner = [&](const PlanContext& context) { return plan_alltoall(context, counts); };
    check_hops(size, 2, planner, stride);
    CHECK(planner({.rank = 1, .size = size, .chunk = 2}).lanes.empty());
  }
}

TEST("plan: a short tensor still occupies all ranks") {
  for (const Algorithm algorithm : {Algorithm::kDirect, Algorithm::kRing}) {
    for (int rank = 0; rank < 8; ++rank) {
      const Plan plan = plan_allreduce({.rank = rank, .size = 8, .chunk = 1000}, algorithm, 11);
      int num_finished = 0;
      for (const Lane& lane : plan.lanes) {
        for (const Step& step : lane.steps) num_finished += step.finish ? 1 : 0;
      }
      CHECK_EQ(num_finished, 1);
    }
  }
}

TEST("plan: frames without a limit") {
  const int64_t chunk = std::numeric_limits<int64_t>::max();
  for (const Algorithm algorithm : {Algorithm::kDirect, Algorithm::kRing}) {
    check_hops(3, chunk, [=](const PlanContext& context) { return plan_allreduce(context, algorithm, 100); });
    check_hops(3, chunk, [=](const PlanContext& context) { return plan_reducescatter(context, algorithm, {1, 2, 3}); });
    check_hops(3, chunk, [=](const PlanContext& context) { return plan_allgather(context, algorithm, {1, 2, 3}); });
  }
  check_hops(3, chunk, [](const PlanContext& context) { return plan_broadcast(context, 1, 100); });
  check_hops(2, chunk, [](const PlanContext& context) { return plan_alltoall(context, {{1, 2}, {3, 4}}); });
}

TEST("plan: too many lanes are refused before memory is taken") {
  const int64_t count = int64_t{1} << 33;
  const int64_t huge = std::numeric_limits<int64_t>::max();
  const PlanContext context{.rank = 0, .size = 2, .chunk = 1};
  const auto refused = [](const std::function<void()>& plan) { check_refused(plan, ErrorKind::kUsage, "lanes"); };
  refused([=] { (void)plan_allreduce(context, Algorithm::kDirect, count); });
  refused([=] { (void)plan_allreduce(context, Algorithm::kRing, huge - 1); });
  refused([=] { (void)plan_reducescatter(context, Algorithm::kDirect, {count, 0}); });
  refused([=] { (void)plan_allgather(context, Algorithm::kRing, {0, count}); });
  refused([=] { (void)plan_broadcast(context, 0, count); });
  refused([=] { (void)plan_alltoall(context, {{0, 0}, {count / 4, 0}}); });
  refused([=] { (void)plan_alltoall(context, {{0, 0}, {huge, 0}}); });
  refused([=] { (void)plan_allgather(context, Algorithm::kDirect, {huge, huge}); });
}

TEST("plan: nonsense is refused") {
  const PlanContext context{.rank = 0, .size = 2, .chunk = 1};
  const auto refused = [](const std::function<void()>& plan) { check_refused(plan, ErrorKind::kInternal, "report"); };
  refused([] { (void)plan_allreduce({.rank = 2, .size = 2, .chunk = 1}, Algorithm::kDirect, 1); });
  refused([] { (void)plan_allreduce({.rank = 0, .size = 2, .chunk = 0}, Algorithm::kDirect, 1); });
  refused([=] { (void)plan_allreduce(context, Algorithm::kDirect, -1); });
  refused([=] { (void)plan_reducescatter(context, Algorithm::kDirect, {1}); });
  refused([=] { (void)plan_allgather(context, Algorithm::kDirect, {1, -1}); });
  refused([=] { (void)plan_broadcast(context, 2, 1); });
  refused([=] { (void)plan_broadcast(context, 0, -1); });
  refused([=] { (void)plan_transfer(context, -1); });
  refused([] { (void)plan_transfer({.rank = 0, .size = 3, .chunk = 1}, 1); });
  refused([=] { (void)plan_alltoall(context, {{1, 1}}); });
  refused([=] { (void)plan_alltoall(context, {{1, 1}, {1}}); });
}

}  // namespace
}  // namespace hvd::testing
