// The cost model: what it chooses where the answer is known, and that it makes sense everywhere else.
#include <string>
#include <vector>

#include "plan/cost.h"
#include "testing/check.h"

namespace hvd::testing {
namespace {

constexpr int64_t kFrame = int64_t{32} << 10;
constexpr int64_t kMiB = int64_t{1} << 20;
constexpr Algorithm kAlgorithms[] = {Algorithm::kExchange, Algorithm::kDirect, Algorithm::kRing,
                                     Algorithm::kDoubling, Algorithm::kTrees,  Algorithm::kHierarchical};

std::vector<int> even_hosts(int num_hosts, int ranks) {
  std::vector<int> hosts;
  for (int host = 0; host < num_hosts; ++host) hosts.insert(hosts.end(), static_cast<size_t>(ranks), host);
  return hosts;
}

CostTopology even(int num_hosts, int ranks, const CostConstants& constants = {}) {
  return topology_of(even_hosts(num_hosts, ranks), constants);
}

Algorithm chosen(const CostTopology& topology, int64_t bytes, const CostConstants& constants = {}) {
  return choose_allreduce(topology, bytes, false, kFrame, constants).algorithm;
}

TEST("cost: tiny vectors take few hops, long ones load the links least") {
  for (const int hosts : {16, 64, 1024}) {
    for (const int ranks : {2, 4}) {
      CHECK(chosen(even(hosts, ranks), 4) == Algorithm::kDoubling);
      CHECK(chosen(even(hosts, ranks), int64_t{256} * hosts * kMiB) == Algorithm::kHierarchical);
      CHECK(chosen(even(hosts, ranks), hosts * kMiB / 8) == Algorithm::kTrees);
    }
  }
}

TEST("cost: two hosts") {
  CHECK(chosen(even(2, 1), 4) == Algorithm::kExchange);
  CHECK(chosen(even(2, 4), 64 * kMiB) == Algorithm::kHierarchical);
  // Ranks with hosts of their own: nothing to be gained from either, and the direct way reduces in rank order.
  CHECK(chosen(even(2, 1), 64 * kMiB) == Algorithm::kDirect);
}

TEST("cost: on one host nothing goes around") {
  for (const int ranks : {2, 4, 8}) {
    CHECK(chosen(even(1, ranks), 4) == Algorithm::kExchange);
    CHECK(chosen(even(1, ranks), 64 * kMiB) == Algorithm::kDirect);
  }
  CHECK(chosen(even(1, 1), 4) == Algorithm::kDirect);
  CHECK_EQ(estimate_allreduce(Algorithm::kRing, even(1, 1), kMiB, kFrame, {}), 0.0);
}

TEST("cost: the order of ranks leaves only what keeps it") {
  for (const int hosts : {1, 2, 9, 300}) {
    for (int64_t bytes = 4; bytes <= 1024 * kMiB; bytes *= 8) {
      const Choice choice = choose_allreduce(even(hosts, 2), bytes, true, kFrame, {});
      CHECK(is_in_rank_order(choice.algorithm));
    }
  }
}

TEST("cost: more bytes never take less time, and an empty vector takes none") {
  for (const std::vector<int>& hosts :
       {even_hosts(1, 4), even_hosts(2, 2), even_hosts(7, 3), even_hosts(500, 8), std::vector<int>{0, 0, 0, 1, 2, 2}}) {
    const CostConstants constants;
    const CostTopology topology = topology_of(hosts, constants);
    for (const Algorithm algorithm : kAlgorithms) {
      double last = estimate_allreduce(algorithm, topology, 0, kFrame, constants);
      CHECK_EQ(last, 0.0);
      for (int64_t bytes = 1; bytes < 4'000'000'000; bytes += bytes / 3 + 1) {
        const double seconds = estimate_allreduce(algorithm, topology, bytes, kFrame, constants);
        if (!(seconds >= last && seconds > 0)) {
          report(__FILE__, __LINE__,
                 "algorithm " + std::to_string(static_cast<int>(algorithm)) + " of " + std::to_string(hosts.size()) +
                     " ranks at " + std::to_string(bytes) + " bytes: " + std::to_string(seconds) + " after " +
                     std::to_string(last));
        }
        last = seconds;
      }
    }
  }
}

TEST("cost: the bound of the links is never beaten") {
  CostConstants constants;
  constants.network_bytes_per_s = 1.25e8;
  for (const int hosts : {2, 4, 64}) {
    for (const int ranks : {1, 2, 8}) {
      const CostTopology topology = even(hosts, ranks, constants);
      for (const Algorithm algorithm : kAlgorithms) {
        const double seconds = estimate_allreduce(algorithm, topology, 64 * kMiB, kFrame, constants);
        CHECK(seconds >= 2.0 * (hosts - 1) / hosts * 64 * kMiB / 1.25e8);
      }
      const Choice best = choose_allreduce(topology, 64 * kMiB, false, kFrame, constants);
      CHECK(best.seconds < 1.1 * 2.0 * (hosts - 1) / hosts * 64 * kMiB / 1.25e8 + hosts * 1e-3);
    }
  }
}

TEST("cost: ranks of a host share its link") {
  CostConstants constants;
  constants.network_bytes_per_s = 1.25e8;
  const auto seconds = [&](Algorithm algorithm, int ranks) {
    return estimate_allreduce(algorithm, even(4, ranks, constants), 64 * kMiB, kFrame, constants);
  };
  CHECK(seconds(Algorithm::kDirect, 4) > 3.9 * seconds(Algorithm::kDirect, 1));
  CHECK(seconds(Algorithm::kHierarchical, 4) < 1.03 * seconds(Algorithm::kHierarchical, 1));
}

TEST("cost: the slowest link decides, and what sends least over it wins") {
  CostConstants constants;
  constants.link_bytes_per_s = {1.25e9, 1.25e9, 1.25e8, 1.25e9};
  const CostTopology uneven = even(4, 2, constants);
  CHECK_EQ(uneven.link_bytes_per_s[2], 1.25e8);
  const double slow = estimate_allreduce(Algorithm::kHierarchical, uneven, 64 * kMiB, kFrame, constants);
  CHECK(slow >= 1.5 * 64 * kMiB / 1.25e8);
  // A host with one rank of nine sends little of a direct exchange: most of it stays on the fast host.
  std::vector<int> hosts(8, 0);
  hosts.push_back(1);
  constants.link_bytes_per_s = {1.25e9, 1.25e7};
  const CostTopology lopsided = topology_of(hosts, constants);
  CHECK(chosen(lopsided, kMiB / 8, constants) != Algorithm::kRing);
  // Hosts of which nothing is known count as usual ones.
  constants.link_bytes_per_s = {0.0};
  CHECK_EQ(topology_of({0, 1}, constants).link_bytes_per_s[0], constants.network_bytes_per_s);
  CHECK_EQ(topology_of({0, 1}, constants).link_bytes_per_s[1], constants.network_bytes_per_s);
}

TEST("cost: broadcast goes by tree if short, along a chain if long") {
  const CostConstants constants;
  for (const int hosts : {4, 16, 256}) {
    const CostTopology topology = even(hosts, 2);
    CHECK(choose_broadcast(topology, 4, kFrame, constants) == Spread::kTree);
    CHECK(choose_broadcast(topology, 1024 * kMiB, kFrame, constants) == Spread::kChain);
  }
  CHECK(choose_broadcast(even(1, 4), kMiB, kFrame, constants) == Spread::kTree);
}

TEST("cost: gathering") {
  const CostConstants constants;
  CHECK(choose_gather(even(1, 8), 64 * kMiB, kFrame, constants) == Algorithm::kDirect);
  CHECK(choose_gather(even(4, 4), 64 * kMiB, kFrame, constants) == Algorithm::kHierarchical);
  CHECK(choose_gather(even(4, 1), 64, kFrame, constants) == Algorithm::kDirect);
  CHECK(estimate_gather(Algorithm::kRing, even(4, 4), 64 * kMiB, kFrame, constants) >=
        estimate_gather(Algorithm::kHierarchical, even(4, 4), 64 * kMiB, kFrame, constants));
}

TEST("cost: 8 bits pay between slow hosts, and neither inside of one nor at 10 Gbit/s") {
  const auto pays = [](const std::vector<int>& hosts, double bytes_per_s) {
    CostConstants constants;
    constants.network_bytes_per_s = bytes_per_s;
    return gain_of_quantizing(topology_of(hosts, constants), false, kFrame, constants).pays();
  };
  for (const int ranks : {1, 2, 4}) {
    for (const int hosts : {2, 4, 16}) {
      for (const double slow : {1.25e6, 1.25e7, 1.25e8}) CHECK(pays(even_hosts(hosts, ranks), slow));
      for (const double fast : {5e8, 1.25e9, 3.125e9, 1.25e10}) CHECK(!pays(even_hosts(hosts, ranks), fast));
    }
    CHECK(!pays(even_hosts(1, ranks), 1.25e6));
  }
}

TEST("cost: 8 bits load a slow link as little as they can") {
  CostConstants constants;
  constants.network_bytes_per_s = 1.25e7;
  for (const int hosts : {2, 4, 64}) {
    const CostTopology topology = even(hosts, 2, constants);
    const double bytes = 2.0 * (hosts - 1) / hosts * 64 * kMiB * 260 / 1024;
    const double seconds = estimate_quantized_allreduce(topology, 64 * kMiB, kFrame, constants);
    CHECK(seconds >= bytes / 1.25e7);
    CHECK(seconds < 1.1 * bytes / 1.25e7);
    CHECK_EQ(estimate_quantized_allreduce(topology, 0, kFrame, constants), 0.0);
  }
  const CostTopology alone = even(1, 4, constants);
  CHECK_EQ(estimate_quantized_allreduce(alone, kMiB, kFrame, constants),
           choose_allreduce(alone, kMiB, false, kFrame, constants).seconds);
}

TEST("cost: frames fit the links") {
  for (int64_t bytes = 4; bytes <= 1024 * kMiB; bytes *= 4) {
    const Choice choice = choose_allreduce(even(5, 3), bytes, false, kFrame, {});
    CHECK(choice.frame_bytes > 0 && choice.frame_bytes <= kFrame);
  }
}

}  // namespace
}  // namespace hvd::testing
