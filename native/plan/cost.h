// How long a collective will take, and so which algorithm is best. Pure, and the same on all ranks: they must give it
// the same constants, and it only adds, multiplies, divides and compares.
//
// The time of an algorithm is that of its hops one after the other, plus that of the resource that is busy longest, as
// frames that follow each other keep all of them busy at the same time: a host's link (in one direction: links are
// taken to be full duplex), a host's memory, a rank's core.
//
// Hosts differ in their links. What an algorithm sends over the link of each host is counted, and the host that needs
// longest for its part decides. An algorithm that sends less over the slow link therefore wins against one that spreads
// its bytes evenly; a ring is as slow as its slowest link.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "plan/plan.h"

namespace hvd {

struct CostConstants {
  // Inside a host; set for servers of the last ten years, as their differences move no choice by much.
  double local_latency_s = 5e-6;         // of a hop between two ranks of a host
  double memory_bytes_per_s = 2e10;      // that the ranks of a host read and write together
  double reduce_bytes_per_s = 8e9;       // operands that one rank combines
  double frame_s = 2e-6;                 // core time that a frame costs, for the sender as for the receiver
  double network_frame_s = 6e-6;         // the same between hosts, where system calls come with it
  double network_byte_s = 2.5e-10;       // core time for a byte that goes through a socket
  double quantize_bytes_per_s = 1.2e10;  // of float32 that one rank turns into 8 bits, or back
  double network_latency_s = 4e-5;       // of a hop between two hosts
  double network_bytes_per_s = 1.25e9;   // of a host's link in one direction, where nothing else is known
  std::vector<double> link_bytes_per_s;  // the same by host; empty or 0: not known
};

// How algorithms are chosen. The same on all ranks.
struct PlanOptions {
  std::optional<Algorithm> allreduce;  // in place of the one that the estimates favor
  CostConstants costs;
};

// The hosts that a set is spread over.
struct CostTopology {
  std::vector<int> ranks;                // of each host
  std::vector<double> link_bytes_per_s;  // of each host

  [[nodiscard]] int hosts() const { return static_cast<int>(ranks.size()); }
  [[nodiscard]] int size() const;
};

// `hosts`: of each set rank, as in PlanContext; the index into `constants.link_bytes_per_s`.
[[nodiscard]] CostTopology topology_of(const std::vector<int>& hosts, const CostConstants& constants);

// Seconds until all ranks have the reduction of `bytes`, in frames of at most `frame_bytes`.
[[nodiscard]] double estimate_allreduce(Algorithm algorithm, const CostTopology& topology, int64_t bytes,
                                        int64_t frame_bytes, const CostConstants& constants);
// Likewise of `bytes` of float32 that travel between hosts in 8 bits, as kStars, in frames of at most
// `most_frame_bytes` of float32. On one host nothing is quantized.
[[nodiscard]] double estimate_quantized_allreduce(const CostTopology& topology, int64_t bytes, int64_t most_frame_bytes,
                                                  const CostConstants& constants);
// Of float32, if the links between the ranks of a host take them.
inline constexpr int64_t kQuantizedFrameBytes = int64_t{64} << 10;
// Into how many frames a share is cut at least if it is long enough: shares of many hosts overlap each other.
[[nodiscard]] constexpr int64_t quantized_frames_per_share(int hosts) { return hosts < 8 ? 4 : 1; }
// 4 Gbit/s, in bytes: from there on cores and memory, of which the model knows little, decide as much as links.
inline constexpr double kFastLink = 5e8;
// What Compression.auto goes by.
struct QuantizingGain {
  double plain_s = 0;           // of an allreduce of kGainBytes of float32
  double quantized_s = 0;       // the same in 8 bits between hosts
  double link_bytes_per_s = 0;  // of the slowest host
  // Precision is given up only for much, and where the link is what takes the time on any machine.
  [[nodiscard]] bool pays() const { return link_bytes_per_s < kFastLink && 2 * quantized_s < plain_s; }
};
inline constexpr int64_t kGainBytes = int64_t{64} << 20;
[[nodiscard]] QuantizingGain gain_of_quantizing(const CostTopology& topology, bool in_rank_order,
                                                int64_t most_frame_bytes, const CostConstants& constants);
// Likewise for a collective that moves a block for each rank, of `bytes` on all ranks together; kDirect, kRing or
// kHierarchical.
[[nodiscard]] double estimate_gather(Algorithm algorithm, const CostTopology& topology, int64_t bytes,
                                     int64_t frame_bytes, const CostConstants& constants);
[[nodiscard]] double estimate_broadcast(Spread spread, const CostTopology& topology, int64_t bytes, int64_t frame_bytes,
                                        const CostConstants& constants);

// Whether the algorithm combines each element's operands in the order of the ranks wherever the element lies, so that
// the result depends on nothing else.
[[nodiscard]] bool is_in_rank_order(Algorithm algorithm);

struct Choice {
  Algorithm algorithm = Algorithm::kDirect;
  int64_t frame_bytes = 0;  // at most
  double seconds = 0;
};

// `in_rank_order`: only algorithms of that kind. `most_frame_bytes`: what the links take.
[[nodiscard]] Choice choose_allreduce(const CostTopology& topology, int64_t bytes, bool in_rank_order,
                                      int64_t most_frame_bytes, const CostConstants& constants);
[[nodiscard]] Algorithm choose_gather(const CostTopology& topology, int64_t bytes, int64_t frame_bytes,
                                      const CostConstants& constants);
[[nodiscard]] Spread choose_broadcast(const CostTopology& topology, int64_t bytes, int64_t frame_bytes,
                                      const CostConstants& constants);

}  // namespace hvd
