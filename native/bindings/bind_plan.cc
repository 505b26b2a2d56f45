// Shares of rows; the cost model, for the settings of an engine and for simulations.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "bindings/bindings.h"
#include "plan/plan.h"
#include "transport/segment.h"

namespace nb = nanobind;

namespace hvd::bindings {
namespace {

constexpr std::array<std::pair<const char*, Algorithm>, 7> kAlgorithms = {{{"exchange", Algorithm::kExchange},
                                                                           {"direct", Algorithm::kDirect},
                                                                           {"ring", Algorithm::kRing},
                                                                           {"doubling", Algorithm::kDoubling},
                                                                           {"trees", Algorithm::kTrees},
                                                                           {"hierarchical", Algorithm::kHierarchical},
                                                                           {"stars", Algorithm::kStars}}};

std::string name_of(Algorithm algorithm) {
  for (const auto& [name, known] : kAlgorithms) {
    if (known == algorithm) return name;
  }
  return "unknown";
}

std::pair<std::string, double> estimate(const std::vector<int>& hosts, int64_t num_bytes, const std::string& algorithm,
                                        bool deterministic, bool quantized, const CostConstants& costs) {
  if (hosts.empty() || num_bytes < 0) {
    throw Error(ErrorKind::kUsage, "an estimate needs the host of at least one rank, and a number of bytes");
  }
  const CostTopology topology = topology_of(hosts, costs);
  const auto frame = static_cast<int64_t>(least_ring_frame_bytes());
  const std::optional<Algorithm> forced = algorithm_named(algorithm);
  if (quantized && topology.hosts() > 1) {
    const int most_ranks = *std::max_element(topology.ranks.begin(), topology.ranks.end());
    const int64_t longer = std::min(kQuantizedFrameBytes, static_cast<int64_t>(max_ring_frame_bytes(most_ranks)));
    return {name_of(Algorithm::kStars), estimate_quantized_allreduce(topology, num_bytes, longer, costs)};
  }
  if (forced) return {algorithm, estimate_allreduce(*forced, topology, num_bytes, frame, costs)};
  const Choice choice = choose_allreduce(topology, num_bytes, deterministic, frame, costs);
  return {name_of(choice.algorithm), choice.seconds};
}

int64_t rows_of_share(int64_t num_rows, int rank, int size) {
  if (num_rows < 0 || rank < 0 || rank >= size) {
    throw Error(ErrorKind::kUsage, "there is no share of " + std::to_string(num_rows) + " rows for rank " +
                                       std::to_string(rank) + " of " + std::to_string(size));
  }
  return share_of(num_rows, rank, size).size();
}

}  // namespace

std::optional<Algorithm> algorithm_named(const std::string& name) {
  std::string known = "auto";
  if (name == known) return std::nullopt;
  for (const auto& [candidate, algorithm] : kAlgorithms) {
    if (name == candidate) return algorithm;
    known += std::string(", ") + candidate;
  }
  throw Error(ErrorKind::kUsage, "\"" + name + "\" is no algorithm of allreduce; there are " + known);
}

void bind_plan(nb::module_& module) {
  nb::class_<CostConstants>(module, "CostConstants", "What the cost model knows of the network: native/plan/cost.h.")
      .def(
          "__init__",
          [](CostConstants* self, double network_latency_s, double network_bytes_per_s,
             std::vector<double> link_bytes_per_s, double memory_bytes_per_s) {
            auto* costs = new (self) CostConstants();
            if (network_latency_s > 0) costs->network_latency_s = network_latency_s;
            if (network_bytes_per_s > 0) costs->network_bytes_per_s = network_bytes_per_s;
            if (memory_bytes_per_s > 0) costs->memory_bytes_per_s = memory_bytes_per_s;
            costs->link_bytes_per_s = std::move(link_bytes_per_s);
          },
          nb::kw_only(), nb::arg("network_latency_s") = 0.0, nb::arg("network_bytes_per_s") = 0.0,
          nb::arg("link_bytes_per_s") = std::vector<double>(), nb::arg("memory_bytes_per_s") = 0.0)
      .def_ro("network_latency_s", &CostConstants::network_latency_s)
      .def_ro("network_bytes_per_s", &CostConstants::network_bytes_per_s)
      .def_ro("link_bytes_per_s", &CostConstants::link_bytes_per_s)
      .def_ro("memory_bytes_per_s", &CostConstants::memory_bytes_per_s);
  module.def("share_of", &rows_of_share, nb::arg("num_rows"), nb::arg("rank"), nb::arg("size"),
             "Return how many of `num_rows` are a rank's; the first ranks have the longer shares.");
  module.def(
      "estimate_allreduce", &estimate, nb::arg("hosts"), nb::arg("num_bytes"), nb::kw_only(),
      nb::arg("algorithm") = "auto", nb::arg("deterministic") = false, nb::arg("quantized") = false,
      nb::arg("costs") = CostConstants(),
      "Return the algorithm of an allreduce, and the seconds until all ranks have the result. `hosts` is the "
      "host of each rank, an index into `costs.link_bytes_per_s`; `num_bytes` is the size of each rank's tensor. "
      "`quantized` lets values of float32 travel between hosts in 8 bits.");
}

}  // namespace hvd::bindings
