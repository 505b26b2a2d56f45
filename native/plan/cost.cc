#include "plan/cost.h"

#include <algorithm>
#include <bit>
#include <map>
#include <numeric>

#include "base/quantization.h"

namespace hvd {
namespace {

// What a link is worth where hosts send to several others in turn: around a ring each gets from one and sends to one
// all the time, up and down trees now this and now that link is idle, and where everybody sends to everybody they
// collide.
constexpr double kTreeEfficiency = 0.8;
constexpr double kCrowdEfficiency = 0.75;
// The many short frames of a quantized allreduce are on their way to all others at once: measured on 3 to 8 hosts.
constexpr double kShortFramesEfficiency = 0.95;
// An algorithm has to be this much better than one that loads the links more evenly.
constexpr double kWorthIt = 0.98;
// Longer vectors do not fit the channels between ranks, which these two algorithms rely on.
constexpr int64_t kMostWholeBytes = int64_t{1} << 20;
constexpr int64_t kLeastFrameBytes = int64_t{8} << 10;
// Of a quantized allreduce, as the native backend cuts it: bytes of float32 in a frame.
constexpr int64_t kLeastQuantizedFrameBytes = int64_t{8} << 10;

// What an algorithm asks of one host and of the rank that has most to do there.
struct Load {
  double link_bytes = 0;       // in the busier direction
  double memory_bytes = 0;     // read and written
  double reduce_bytes = 0;     // operands, by one rank
  double local_frames = 0;     // sent and received by one rank
  double network_frames = 0;   // likewise
  double network_bytes = 0;    // likewise
  double quantized_bytes = 0;  // of float32 that one rank turns into 8 bits, or back
};

double as_double(int64_t number) { return static_cast<double>(number); }

int log2_floor(int number) { return static_cast<int>(std::bit_width(static_cast<unsigned>(number))) - 1; }

int log2_ceil(int number) { return number > 1 ? log2_floor(number - 1) + 1 : 0; }

// Frames follow each other through all resources of a host; `num_frames` tells how well these overlap.
double seconds_of(const Load& load, double link_bytes_per_s, double num_frames, const CostConstants& constants) {
  const double link = load.link_bytes / link_bytes_per_s;
  const double memory = load.memory_bytes / constants.memory_bytes_per_s;
  const double core = load.reduce_bytes / constants.reduce_bytes_per_s + load.local_frames * constants.frame_s +
                      load.network_frames * constants.network_frame_s + load.network_bytes * constants.network_byte_s +
                      load.quantized_bytes / constants.quantize_bytes_per_s;
  const double longest = std::max({link, memory, core});
  return longest + (link + memory + core - longest) / num_frames;
}

// The host that needs longest decides.
template <class LoadOfHost>
double slowest(const CostTopology& topology, double num_frames, const CostConstants& constants,
               const LoadOfHost& load_of_host) {
  double seconds = 0;
  for (int host = 0; host < topology.hosts(); ++host) {
    const double link = topology.link_bytes_per_s[static_cast<size_t>(host)];
    seconds = std::max(seconds, seconds_of(load_of_host(host), link, num_frames, constants));
  }
  return seconds;
}

double ranks_of(const CostTopology& topology, int host) { return topology.ranks[static_cast<size_t>(host)]; }

bool any_shared(const CostTopology& topology) {
  return std::any_of(topology.ranks.begin(), topology.ranks.end(), [](int ranks) { return ranks > 1; });
}

// Everybody with everybody: `sent` are the bytes that each rank sends to each other, once.
double all_to_all(const CostTopology& topology, double sent, double frames, double reduced,
                  const CostConstants& constants) {
  const double size = topology.size();
  const double efficiency = topology.hosts() > 2 ? kCrowdEfficiency : 1.0;
  return slowest(topology, (size - 1) * frames, constants, [&](int host) {
    const double ranks = ranks_of(topology, host);
    const double remote = size - ranks;
    return Load{.link_bytes = ranks * remote * sent / efficiency,
                .memory_bytes = ranks * (2 * (ranks - 1) + 4 * remote) * sent + ranks * reduced,
                .reduce_bytes = reduced,
                .local_frames = 2 * (ranks - 1) * frames,
                .network_frames = 2 * remote * frames,
                .network_bytes = 2 * remote * sent};
  });
}

double hop_s(const CostTopology& topology, const CostConstants& constants) {
  return topology.hosts() > 1 ? constants.network_latency_s : constants.local_latency_s;
}

// Around a ring of all ranks, host after host. `turns`: 2 for an allreduce, 1 for half of it.
double ring_s(const CostTopology& topology, double bytes, double frame_bytes, double turns,
              const CostConstants& constants) {
  const double size = topology.size();
  const double between = topology.hosts() > 1 ? topology.hosts() : 0;
  const double hops = turns * (size - 1) / size;
  const double frames = std::max(size, bytes / frame_bytes);
  const double latency = hops * (between * constants.network_latency_s + (size - between) * constants.local_latency_s);
  return latency + slowest(topology, frames / size, constants, [&](int host) {
           const double ranks = ranks_of(topology, host);
           const bool crosses = topology.hosts() > 1;
           return Load{.link_bytes = crosses ? hops * bytes : 0,
                       .memory_bytes = 4 * hops * bytes * ranks,
                       .reduce_bytes = 2 * bytes,
                       .local_frames = ranks > 1 ? 2 * hops * frames : 0,
                       .network_frames = crosses ? hops * frames * (ranks > 1 ? 1 : 2) : 0,
                       .network_bytes = crosses ? hops * bytes * (ranks > 1 ? 1 : 2) : 0};
         });
}

// Shares with a leader on each host, which pass over each link `turns` times, less the last host's. `side_by_side`:
// frames that a host can work on at the same time, of the shares of one stripe.
double by_hosts_s(const CostTopology& topology, double bytes, double frame_bytes, double turns, double side_by_side,
                  const CostConstants& constants) {
  const double size = topology.size();
  const double hosts = topology.hosts();
  const double hops = turns * (hosts - 1) / hosts;
  const double frames = std::max(size, bytes / frame_bytes);
  const double latency = any_shared(topology) ? turns * constants.local_latency_s : 0;
  return latency + slowest(topology, side_by_side * frames / size, constants, [&](int host) {
           const double ranks = ranks_of(topology, host);
           return Load{.link_bytes = hops * bytes,
                       .memory_bytes = 2 * turns * (ranks - 1) * bytes + 4 * hops * bytes + 2 * bytes,
                       .reduce_bytes = (ranks + 1) / ranks * bytes,
                       .local_frames = 2 * turns * (ranks - 1) / ranks * frames,
                       .network_frames = 2 * hops * frames / ranks,
                       .network_bytes = 2 * hops * bytes / ranks};
         });
}

double trees_s(const CostTopology& topology, double bytes, double frame_bytes, const CostConstants& constants) {
  CostTopology slower = topology;
  for (double& link : slower.link_bytes_per_s) link *= kTreeEfficiency;
  const int depth = std::max(log2_ceil(topology.hosts()), 1);
  return 2 * depth * hop_s(topology, constants) +
         by_hosts_s(slower, bytes, frame_bytes, 2, std::max(1.0, topology.hosts() / (2.0 * depth)), constants);
}

// What a root gets and gives in turn from and to all others is, over all roots, what a ring carries.
double stars_s(const CostTopology& topology, double bytes, double frame_bytes, const CostConstants& constants) {
  CostTopology slower = topology;
  const double efficiency = topology.hosts() > 2 ? kCrowdEfficiency : 1.0;
  for (double& link : slower.link_bytes_per_s) link *= efficiency;
  return 2 * hop_s(topology, constants) + by_hosts_s(slower, bytes, frame_bytes, 2, 1, constants);
}

// Shares of blocks with a leader on each host: it sums up its host in float32, and sends 8 bits of each value to the
// host that owns the share, which sends 8 bits of the total to all. So each rank quantizes the sums of its lanes and
// reads the totals; for its own share it reads what all hosts have sent, and quantizes the total.
double quantized_stars_s(const CostTopology& topology, double bytes, double frame_bytes,
                         const CostConstants& constants) {
  CostTopology slower = topology;
  const double efficiency = topology.hosts() > 2 ? kShortFramesEfficiency : 1.0;
  for (double& link : slower.link_bytes_per_s) link *= efficiency;
  const double size = topology.size();
  const double hosts = topology.hosts();
  const double hops = 2 * (hosts - 1) / hosts;
  const double values = bytes / sizeof(float);
  const double wire = static_cast<double>(quantized_bytes(static_cast<int64_t>(values)));
  const double frames = std::max(size, bytes / frame_bytes);
  const double latency = any_shared(topology) ? 2 * constants.local_latency_s : 0;
  // Each host owns shares and has part in those of all others, at the same time.
  const double side_by_side = std::max(1.0, hosts / 2);
  return 2 * hop_s(topology, constants) + latency +
         slowest(slower, side_by_side * frames / size, constants, [&](int host) {
           const double ranks = ranks_of(topology, host);
           return Load{.link_bytes = hops * wire,
                       .memory_bytes = 4 * (ranks - 1) * bytes + 4 * hops * wire + 4 * bytes,
                       .reduce_bytes = (ranks + 1) / ranks * bytes,
                       .local_frames = 4 * (ranks - 1) / ranks * frames,
                       .network_frames = 2 * hops * frames / ranks,
                       .network_bytes = 2 * hops * wire / ranks,
                       .quantized_bytes = (3 + 1 / hosts) * bytes / ranks};
         });
}

double doubling_s(const CostTopology& topology, double bytes, double frame_bytes, const CostConstants& constants) {
  const int hosts = topology.hosts();
  const int rounds = log2_floor(hosts);
  const int power = 1 << rounds;
  const double frames = std::max(1.0, bytes / frame_bytes);
  const double hops = rounds + (hosts > power ? 2 : 0);
  const double latency = hops * hop_s(topology, constants) + (any_shared(topology) ? 2 * constants.local_latency_s : 0);
  return latency + slowest(topology, frames, constants, [&](int host) {
           const double ranks = ranks_of(topology, host);
           const double exchanged = host >= power ? 1 : rounds + (host + power < hosts ? 1 : 0);
           const double carried = std::max(1.0 / ranks, 1.0 / frames);  // the part of the frames that one rank carries
           return Load{.link_bytes = exchanged * bytes,
                       .memory_bytes = 4 * (ranks - 1) * bytes + (4 * exchanged + 2) * bytes,
                       .reduce_bytes = (ranks + exchanged) * bytes * carried,
                       .local_frames = 2 * (ranks - 1) * frames * carried + 2 * frames,
                       .network_frames = 2 * exchanged * frames * carried,
                       .network_bytes = 2 * exchanged * bytes * carried};
         });
}

}  // namespace

int CostTopology::size() const { return std::accumulate(ranks.begin(), ranks.end(), 0); }

CostTopology topology_of(const std::vector<int>& hosts, const CostConstants& constants) {
  std::map<int, int> ranks;
  for (const int host : hosts) ++ranks[host];
  CostTopology topology;
  for (const auto& [host, number] : ranks) {
    const auto index = static_cast<size_t>(host);
    const double known = index < constants.link_bytes_per_s.size() ? constants.link_bytes_per_s[index] : 0;
    topology.ranks.push_back(number);
    topology.link_bytes_per_s.push_back(known > 0 ? known : constants.network_bytes_per_s);
  }
  return topology;
}

double estimate_allreduce(Algorithm algorithm, const CostTopology& topology, int64_t bytes, int64_t frame_bytes,
                          const CostConstants& constants) {
  const int size = topology.size();
  if (size <= 1 || bytes == 0) return 0;
  const double all = as_double(bytes);
  const double frame = as_double(frame_bytes);
  const double hop = hop_s(topology, constants);
  switch (algorithm) {
    case Algorithm::kExchange:
      return hop + all_to_all(topology, all, std::max(1.0, all / frame), size * all, constants);
    case Algorithm::kDirect:
      return 2 * hop + 2 * all_to_all(topology, all / size, std::max(1.0, all / size / frame), all / 2, constants);
    case Algorithm::kRing:
      return ring_s(topology, all, frame, 2, constants);
    case Algorithm::kDoubling:
      return doubling_s(topology, all, frame, constants);
    case Algorithm::kTrees:
      return trees_s(topology, all, frame, constants);
    case Algorithm::kHierarchical:
      return 2 * (topology.hosts() - 1) * hop + by_hosts_s(topology, all, frame, 2, 1, constants);
    case Algorithm::kStars:
      return stars_s(topology, all, frame, constants);
  }
  return 0;
}

double estimate_quantized_allreduce(const CostTopology& topology, int64_t bytes, int64_t most_frame_bytes,
                                    const CostConstants& constants) {
  const int size = topology.size();
  if (size <= 1 || bytes == 0) return 0;
  if (topology.hosts() == 1) return choose_allreduce(topology, bytes, false, most_frame_bytes, constants).seconds;
  const int64_t least = std::min(kLeastQuantizedFrameBytes, most_frame_bytes);
  const int64_t frame =
      std::clamp(bytes / size / quantized_frames_per_share(topology.hosts()), least, most_frame_bytes);
  return quantized_stars_s(topology, as_double(bytes), as_double(frame), constants);
}

QuantizingGain gain_of_quantizing(const CostTopology& topology, bool in_rank_order, int64_t most_frame_bytes,
                                  const CostConstants& constants) {
  return {.plain_s = choose_allreduce(topology, kGainBytes, in_rank_order, most_frame_bytes, constants).seconds,
          .quantized_s = estimate_quantized_allreduce(topology, kGainBytes, most_frame_bytes, constants),
          .link_bytes_per_s = *std::min_element(topology.link_bytes_per_s.begin(), topology.link_bytes_per_s.end())};
}

double estimate_gather(Algorithm algorithm, const CostTopology& topology, int64_t bytes, int64_t frame_bytes,
                       const CostConstants& constants) {
  const int size = topology.size();
  if (size <= 1 || bytes == 0) return 0;
  const double all = as_double(bytes);
  const double frame = as_double(frame_bytes);
  const double hop = hop_s(topology, constants);
  if (algorithm == Algorithm::kDirect) {
    return hop + all_to_all(topology, all / size, std::max(1.0, all / size / frame), all, constants);
  }
  if (algorithm == Algorithm::kRing) return ring_s(topology, all, frame, 1, constants);
  return (topology.hosts() - 1) * hop + by_hosts_s(topology, all, frame, 1, 1, constants);
}

double estimate_broadcast(Spread spread, const CostTopology& topology, int64_t bytes, int64_t frame_bytes,
                          const CostConstants& constants) {
  const int hosts = topology.hosts();
  if (hosts <= 1 || bytes == 0) return 0;
  const bool tree = spread == Spread::kTree;
  const double frame = as_double(std::min(bytes, frame_bytes));
  const double slowest_link = *std::min_element(topology.link_bytes_per_s.begin(), topology.link_bytes_per_s.end());
  const double hops = tree ? log2_ceil(hosts) : hosts - 1;
  const double sends = tree ? log2_ceil(hosts) : 1;  // by the root's host
  return hops * (constants.network_latency_s + frame / slowest_link) + sends * as_double(bytes) / slowest_link;
}

bool is_in_rank_order(Algorithm algorithm) {
  return algorithm == Algorithm::kDirect || algorithm == Algorithm::kExchange;
}

Choice choose_allreduce(const CostTopology& topology, int64_t bytes, bool in_rank_order, int64_t most_frame_bytes,
                        const CostConstants& constants) {
  Choice best{.algorithm = Algorithm::kDirect, .frame_bytes = most_frame_bytes, .seconds = -1};
  for (const Algorithm algorithm : {Algorithm::kHierarchical, Algorithm::kDirect, Algorithm::kTrees,
                                    Algorithm::kDoubling, Algorithm::kExchange, Algorithm::kRing}) {
    const bool whole = algorithm == Algorithm::kExchange || algorithm == Algorithm::kDoubling;
    if (whole && bytes > kMostWholeBytes) continue;
    // On one host there is nothing between hosts to be arranged.
    if ((in_rank_order || topology.hosts() == 1) && !is_in_rank_order(algorithm)) continue;
    for (int64_t frame = most_frame_bytes; frame > 0; frame = frame / 2 < kLeastFrameBytes ? 0 : frame / 2) {
      const double seconds = estimate_allreduce(algorithm, topology, bytes, frame, constants);
      if (best.seconds < 0 || seconds < kWorthIt * best.seconds) best = {algorithm, frame, seconds};
    }
  }
  return best;
}

Algorithm choose_gather(const CostTopology& topology, int64_t bytes, int64_t frame_bytes,
                        const CostConstants& constants) {
  const double direct = estimate_gather(Algorithm::kDirect, topology, bytes, frame_bytes, constants);
  const double hierarchical = estimate_gather(Algorithm::kHierarchical, topology, bytes, frame_bytes, constants);
  return topology.hosts() == 1 || direct <= hierarchical ? Algorithm::kDirect : Algorithm::kHierarchical;
}

Spread choose_broadcast(const CostTopology& topology, int64_t bytes, int64_t frame_bytes,
                        const CostConstants& constants) {
  const double tree = estimate_broadcast(Spread::kTree, topology, bytes, frame_bytes, constants);
  const double chain = estimate_broadcast(Spread::kChain, topology, bytes, frame_bytes, constants);
  return chain < tree ? Spread::kChain : Spread::kTree;
}

}  // namespace hvd
