// Plans of ranks that are spread over hosts in all ways: results, and what crosses the link of each host.
#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "plan/plan.h"
#include "testing/check.h"
#include "tests/test_plan_world.h"

namespace hvd::testing {
namespace {

using Hosts = std::vector<int>;  // by rank
using Counts = std::vector<int64_t>;
using Planner = std::function<Plan(const PlanContext&)>;

constexpr Algorithm kAllreduceAlgorithms[] = {Algorithm::kExchange, Algorithm::kDirect, Algorithm::kRing,
                                              Algorithm::kDoubling, Algorithm::kTrees,  Algorithm::kHierarchical,
                                              Algorithm::kStars};
constexpr Algorithm kGatherAlgorithms[] = {Algorithm::kDirect, Algorithm::kRing, Algorithm::kHierarchical};
constexpr const char* kNames[] = {"exchange", "direct",       "ring", "doubling",
                                  "trees",    "hierarchical", "stars"};  // by Algorithm

constexpr Schedule kSchedules[] = {
    {.name = "unlimited", .order = Order::kRandom, .capacity = 0, .together = false, .window = 0},
    {.name = "random, 1 frame", .order = Order::kRandom, .capacity = 1, .together = false, .window = 0},
    {.name = "rising, 4 frames", .order = Order::kRising, .capacity = 4, .together = true, .window = 0},
    {.name = "three lanes, 2 frames", .order = Order::kRandom, .capacity = 2, .together = true, .window = 3},
};

// Whether no channel ever has to be emptied by force.
bool flows(Algorithm algorithm, const Schedule& schedule) {
  if (schedule.window != 0) return false;
  if (algorithm == Algorithm::kHierarchical) return !schedule.together;
  return algorithm == Algorithm::kDirect || algorithm == Algorithm::kRing;
}

std::string text_of(const Hosts& hosts) {
  std::string text = " on hosts";
  if (hosts.size() > 20) return " on many hosts";
  for (const int host : hosts) text += " " + std::to_string(host);
  return text;
}

Job job_of(const Hosts& hosts, int64_t chunk, const Planner& planner) {
  Job job{.plans = {}, .num_inputs = {}, .num_outputs = {}, .chunk = chunk};
  const auto size = static_cast<int>(hosts.size());
  for (int rank = 0; rank < size; ++rank) {
    job.plans.push_back(planner({.rank = rank, .size = size, .chunk = chunk, .hosts = hosts}));
  }
  return job;
}

uint64_t next_seed = 1;

Outcome run_or_fail(const std::string& title, const Job& job, const Schedule& schedule) {
  const uint64_t seed = next_seed++;
  Outcome outcome = run(job, schedule, seed);
  if (outcome.problem.empty()) return outcome;
  report(__FILE__, __LINE__, title + ", " + schedule.name + ", seed " + std::to_string(seed) + ": " + outcome.problem);
  throw Fatal(title);
}

// `what` returns the text, which is wanted only where something is wrong.
template <class What>
void require(bool condition, const What& what) {
  if (condition) return;
  report(__FILE__, __LINE__, what());
  throw Fatal(what());
}

// Each rank's operand is in `value` exactly once, and the postscale factor was applied once.
bool is_sum(const Value& value, int size, int64_t index) {
  Value all = element(0, index);
  for (int rank = 1; rank < size; ++rank) all = joined(all, element(rank, index));
  return value.sum == all.sum && value.scale == all.scale && value.finished == 1 && value.stored == 1;
}

void check_allreduce(const Hosts& hosts, int64_t chunk, Algorithm algorithm, int64_t count, const Schedule& schedule) {
  const std::string title = std::string("allreduce ") + kNames[static_cast<size_t>(algorithm)] + text_of(hosts) +
                            ", count " + std::to_string(count);
  Job job = job_of(hosts, chunk, [&](const PlanContext& context) { return plan_allreduce(context, algorithm, count); });
  job.num_inputs = job.num_outputs = Counts(hosts.size(), count);
  const Outcome outcome = run_or_fail(title, job, schedule);
  for (int64_t i = 0; i < count; ++i) {
    const auto index = static_cast<size_t>(i);
    const Value& first = outcome.outputs[0][index];
    require(is_sum(first, static_cast<int>(hosts.size()), i),
            [&] { return title + ": wrong element " + std::to_string(i); });
    for (const std::vector<Value>& output : outcome.outputs) {
      // Also in the order of operands: the results are equal to the bit.
      require(output[index] == first, [&] { return title + ": ranks differ in element " + std::to_string(i); });
    }
  }
  if (flows(algorithm, schedule)) {
    require(outcome.num_set_aside == 0, [&] { return title + ", " + schedule.name + ": frames were set aside"; });
  }
}

void check_reducescatter(const Hosts& hosts, int64_t chunk, Algorithm algorithm, const Counts& counts,
                         const Schedule& schedule) {
  const std::string title = std::string("reducescatter ") + kNames[static_cast<size_t>(algorithm)] + text_of(hosts);
  Job job =
      job_of(hosts, chunk, [&](const PlanContext& context) { return plan_reducescatter(context, algorithm, counts); });
  job.num_inputs = Counts(hosts.size(), std::accumulate(counts.begin(), counts.end(), int64_t{0}));
  job.num_outputs = counts;
  const Outcome outcome = run_or_fail(title, job, schedule);
  int64_t begin = 0;
  for (size_t rank = 0; rank < hosts.size(); ++rank) {
    for (int64_t i = 0; i < counts[rank]; ++i) {
      const Value& value = outcome.outputs[rank][static_cast<size_t>(i)];
      require(is_sum(value, static_cast<int>(hosts.size()), begin + i), [&] { return title + ": wrong element"; });
    }
    begin += counts[rank];
  }
}

void check_allgather(const Hosts& hosts, int64_t chunk, Algorithm algorithm, const Counts& counts,
                     const Schedule& schedule) {
  const std::string title = std::string("allgather ") + kNames[static_cast<size_t>(algorithm)] + text_of(hosts);
  Job job =
      job_of(hosts, chunk, [&](const PlanContext& context) { return plan_allgather(context, algorithm, counts); });
  job.num_inputs = counts;
  job.num_outputs = Counts(hosts.size(), std::accumulate(counts.begin(), counts.end(), int64_t{0}));
  const Outcome outcome = run_or_fail(title, job, schedule);
  for (const std::vector<Value>& output : outcome.outputs) {
    size_t at = 0;
    for (size_t owner = 0; owner < hosts.size(); ++owner) {
      for (int64_t i = 0; i < counts[owner]; ++i) {
        Value expected = element(static_cast<int>(owner), i);
        expected.stored = 1;
        require(output[at++] == expected, [&] { return title + ": wrong element"; });
      }
    }
  }
}

void check_broadcast(const Hosts& hosts, int64_t chunk, int root, Spread spread, const Schedule& schedule) {
  constexpr int64_t kCount = 7;
  const std::string title = std::string("broadcast in a ") + (spread == Spread::kTree ? "tree" : "chain") +
                            text_of(hosts) + ", root " + std::to_string(root);
  Job job =
      job_of(hosts, chunk, [&](const PlanContext& context) { return plan_broadcast(context, root, kCount, spread); });
  job.num_inputs = job.num_outputs = Counts(hosts.size(), kCount);
  const Outcome outcome = run_or_fail(title, job, schedule);
  for (const std::vector<Value>& output : outcome.outputs) {
    for (int64_t i = 0; i < kCount; ++i) {
      Value expected = element(root, i);
      expected.stored = 1;
      require(output[static_cast<size_t>(i)] == expected, [&] { return title + ": wrong element"; });
    }
  }
}

// All ways to spread ranks over hosts: the host of a rank is one that exists, or the next new one.
void for_each_grouping(int size, const std::function<void(const Hosts&)>& visit) {
  Hosts hosts;
  const std::function<void(int)> extend = [&](int num_hosts) {
    if (hosts.size() == static_cast<size_t>(size)) return visit(hosts);
    for (int host = 0; host <= num_hosts; ++host) {
      hosts.push_back(host);
      extend(std::max(num_hosts, host + 1));
      hosts.pop_back();
    }
  };
  extend(0);
}

// Hosts with these numbers of ranks; ranks follow each other, or hosts take turns.
Hosts laid_out(const std::vector<int>& ranks_of_host, bool in_turn) {
  Hosts hosts;
  std::vector<int> left = ranks_of_host;
  const auto total = static_cast<size_t>(std::accumulate(left.begin(), left.end(), 0));
  for (size_t host = 0; hosts.size() < total; host = (host + 1) % left.size()) {
    for (; left[host] > 0; --left[host]) {
      hosts.push_back(static_cast<int>(host));
      if (!in_turn) continue;
      --left[host];
      break;
    }
  }
  return hosts;
}

const Schedule& next_schedule() { return kSchedules[next_seed % std::size(kSchedules)]; }

// What leaves and what enters each host, in elements.
struct Traffic {
  std::map<int, int64_t> out;
  std::map<int, int64_t> in;
};

Traffic traffic_of(const Job& job, const Hosts& hosts) {
  Traffic traffic;
  for (size_t rank = 0; rank < hosts.size(); ++rank) {
    for (const Lane& lane : job.plans[rank].lanes) {
      for (const Step& step : lane.steps) {
        for (const int peer : step.send_to) {
          if (hosts[static_cast<size_t>(peer)] == hosts[rank]) continue;
          traffic.out[hosts[rank]] += step.range.size();
          traffic.in[hosts[static_cast<size_t>(peer)]] += step.range.size();
        }
      }
    }
  }
  return traffic;
}

void check_traffic(const Traffic& traffic, int num_hosts, int64_t expected, const std::string& title) {
  for (int host = 0; host < num_hosts; ++host) {
    const int64_t out = traffic.out.contains(host) ? traffic.out.at(host) : 0;
    const int64_t in = traffic.in.contains(host) ? traffic.in.at(host) : 0;
    require(out == expected && in == expected, [&] {
      return title + ": host " + std::to_string(host) + " sends " + std::to_string(out) + " elements and gets " +
             std::to_string(in) + ", expected " + std::to_string(expected);
    });
  }
}

TEST("plan hosts: allreduce of up to 9 ranks, over hosts in all ways") {
  for (int size = 1; size <= (kSanitized ? 6 : 9); ++size) {
    size_t turn = 0;
    for_each_grouping(size, [&](const Hosts& hosts) {
      for (const Algorithm algorithm : kAllreduceAlgorithms) {
        // From 7 ranks on there are thousands of groupings: each gets one of the algorithms that know hosts.
        if (size > 6 && static_cast<size_t>(algorithm) != 2 + turn % 4) continue;
        check_allreduce(hosts, 2, algorithm, 1 + static_cast<int64_t>(turn % 11), next_schedule());
      }
      ++turn;
    });
  }
}

TEST("plan hosts: reducescatter, allgather and broadcast, over hosts in all ways") {
  for (int size = 1; size <= 6; ++size) {
    for_each_grouping(size, [&](const Hosts& hosts) {
      Counts counts;
      for (int rank = 0; rank < size; ++rank) counts.push_back(rank * 2 % 5);
      for (const Algorithm algorithm : kGatherAlgorithms) {
        check_reducescatter(hosts, 2, algorithm, counts, next_schedule());
        check_allgather(hosts, 2, algorithm, counts, next_schedule());
      }
      for (const Spread spread : {Spread::kTree, Spread::kChain}) {
        for (int root = 0; root < size; ++root) check_broadcast(hosts, 2, root, spread, next_schedule());
      }
    });
  }
}

TEST("plan hosts: larger jobs, even and uneven, under every schedule") {
  const std::vector<std::vector<int>> jobs = {
      {4, 4, 4, 4}, {1, 8, 3}, {5, 5, 6, 5, 5}, {16, 1, 1, 1}, {2, 2, 2, 2, 2, 2}};
  for (const std::vector<int>& ranks : jobs) {
    for (const bool in_turn : {false, true}) {
      const Hosts hosts = laid_out(ranks, in_turn);
      for (const Schedule& schedule : kSchedules) {
        for (const Algorithm algorithm : kAllreduceAlgorithms) check_allreduce(hosts, 3, algorithm, 301, schedule);
        check_broadcast(hosts, 2, 3, Spread::kTree, schedule);
        check_broadcast(hosts, 2, 3, Spread::kChain, schedule);
      }
    }
  }
}

TEST("plan hosts: up to 4096 ranks on uneven hosts") {
  for (const int num_hosts : {64, 600}) {
    std::vector<int> ranks;
    for (int host = 0; host < num_hosts; ++host) ranks.push_back(1 + host * 7 % 13);
    if (num_hosts == 600) ranks.back() += 4096 - std::accumulate(ranks.begin(), ranks.end(), 0);
    for (const bool in_turn : {false, true}) {
      const Hosts hosts = laid_out(ranks, in_turn);
      for (const Algorithm algorithm :
           {Algorithm::kRing, Algorithm::kDoubling, Algorithm::kTrees, Algorithm::kHierarchical}) {
        if (kSanitized && num_hosts > 64) continue;
        check_allreduce(hosts, 2, algorithm, 5, kSchedules[0]);
      }
      check_broadcast(hosts, 3, 1, Spread::kTree, kSchedules[0]);
      check_broadcast(hosts, 3, 1, Spread::kChain, kSchedules[0]);
    }
  }
}

// What any allreduce has to send over each link, if all send alike: 2 (hosts - 1) / hosts of the vector.
TEST("plan hosts: a host's link carries its part of the vector once, whatever number of ranks it has") {
  for (const std::vector<int>& ranks :
       std::vector<std::vector<int>>{{4, 4}, {2, 2, 2, 2}, {1, 3, 2}, {8, 1, 1, 1, 5}}) {
    const auto num_hosts = static_cast<int>(ranks.size());
    for (const bool in_turn : {false, true}) {
      const Hosts hosts = laid_out(ranks, in_turn);
      const auto size = static_cast<int64_t>(hosts.size());
      const int64_t count = 2 * size * num_hosts;  // as many stripes as hosts: each host starts as many lanes
      const auto planned = [&](Algorithm algorithm) {
        const Job job =
            job_of(hosts, 2, [&](const PlanContext& context) { return plan_allreduce(context, algorithm, count); });
        return traffic_of(job, hosts);
      };
      const int64_t bound = 2 * (num_hosts - 1) * count / num_hosts;
      check_traffic(planned(Algorithm::kHierarchical), num_hosts, bound, "hierarchical" + text_of(hosts));
      check_traffic(planned(Algorithm::kTrees), num_hosts, bound, "trees" + text_of(hosts));
      // Around all ranks: each lane leaves each host once up and once down, but for two of its hops.
      check_traffic(planned(Algorithm::kRing), num_hosts, 2 * (size - 1) * count / size, "ring" + text_of(hosts));
    }
  }
}

TEST("plan hosts: each host gets a block from elsewhere once") {
  const Hosts hosts = laid_out({3, 1, 2}, true);
  const Counts counts(6, 10);
  const auto gathered = [&](Algorithm algorithm) {
    return traffic_of(
        job_of(hosts, 2, [&](const PlanContext& context) { return plan_allgather(context, algorithm, counts); }),
        hosts);
  };
  const Traffic hierarchical = gathered(Algorithm::kHierarchical);
  CHECK_EQ(hierarchical.in.at(0), 30);
  CHECK_EQ(hierarchical.in.at(1), 50);
  CHECK_EQ(hierarchical.in.at(2), 40);
  // Around all ranks a block comes back to the ranks in front of its owner.
  const Traffic ring = gathered(Algorithm::kRing);
  for (int host = 0; host < 3; ++host) CHECK_EQ(ring.in.at(host), 50);
  for (const Spread spread : {Spread::kTree, Spread::kChain}) {
    const Job job =
        job_of(hosts, 2, [&](const PlanContext& context) { return plan_broadcast(context, 1, 10, spread); });
    const Traffic traffic = traffic_of(job, hosts);
    CHECK_EQ(traffic.in.at(0), 10);
    CHECK(!traffic.in.contains(1));
    CHECK_EQ(traffic.in.at(2), 10);
  }
}

TEST("plan hosts: doubling takes as many rounds as the number of hosts has bits") {
  const Hosts hosts = laid_out({1, 1, 1, 1, 1, 1, 1, 1}, false);
  const Job job =
      job_of(hosts, 100, [](const PlanContext& context) { return plan_allreduce(context, Algorithm::kDoubling, 40); });
  check_traffic(traffic_of(job, hosts), 8, 3 * 40, "doubling");
}

// The ranks of a host share the work of its link.
TEST("plan hosts: leaders change from lane to lane") {
  const Hosts hosts = laid_out({4, 4, 4}, false);
  const auto size = static_cast<int64_t>(hosts.size());
  for (const Algorithm algorithm : {Algorithm::kTrees, Algorithm::kHierarchical}) {
    const Job job =
        job_of(hosts, 5, [&](const PlanContext& context) { return plan_allreduce(context, algorithm, 5 * size); });
    for (const Plan& plan : job.plans) {
      const auto carried = std::count_if(plan.lanes.begin(), plan.lanes.end(), [](const Lane& lane) {
        return lane.steps.front().receive_from.size() >= 3;  // from the others of the host
      });
      CHECK_EQ(carried, 3);
    }
  }
}

}  // namespace
}  // namespace hvd::testing
