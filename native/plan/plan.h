// Plans: which rank sends, receives and reduces which elements, as plain data.
//
// A plan is a pure function of (operation, set rank, set size, hosts, element counts), so it can be
// checked for thousands of ranks without a socket. Words used here:
//
//   range    elements [begin, end) of the logical vector that the operation works on
//   frame    what one send moves: at most `chunk` elements, sent and received as a whole
//   lane     a sequence of steps that run one after the other; lanes of a plan are independent and run
//            side by side. Lane numbers agree on all ranks: a frame carries its lane's number.
//   step     wait for one frame from each rank of `receive_from`, combine, pass the result on:
//              value = combine(frames, and this rank's own input[source] if `with_own`, or output[range] in its
//                              place if `accumulated`: what an earlier step of the lane stored)
//              if store: output[range] = value
//              send value to each rank of `send_to`
//
// Guarantees that every plan keeps and the tests check: each frame sent is received once, in a lane of
// the same number and with the same range; between two ranks the frames of one lane are received in the
// order in which they are sent; the whole never deadlocks when frames of different lanes are taken in any order.
// More than that: a rank never has to empty a full channel by force, even if channels hold a single frame, as long as
// it works on all its lanes and, in each, takes the next operand as soon as it is there, whether or not there is room
// to send on. One that waits until all operands of a step are there is as safe if it sends to each peer by rising
// lane number. kHierarchical keeps only the former, and kExchange, kDoubling, kTrees and kStars neither, except for
// vectors that fit the channels: where more is under way, ranks may have to set frames aside.
//
// A step that only sends has a `range` as long as `source`; it is the receiver's, except in alltoall.
#pragma once

#include <cstdint>
#include <vector>

namespace hvd {

struct Range {
  int64_t begin = 0;
  int64_t end = 0;
  [[nodiscard]] int64_t size() const { return end - begin; }
  bool operator==(const Range&) const = default;
};

struct Step {
  std::vector<int> receive_from;  // set ranks in the order in which operands are combined
  std::vector<int> send_to;       // set ranks
  Range range;                    // in the output's numbering for received frames and `store`
  Range source;                   // in the input's numbering: what this rank adds or sends
  bool with_own = false;          // this rank's input[source] is an operand
  int own_position = 0;           // its place among the operands, so that the order is that of the ranks
  bool accumulated = false;       // the own operand is output[range] in place of input[source], and scaled already
  bool store = false;             // write the value to output[range]
  bool finish = false;            // the value is final: divide and apply the postscale factor before storing or sending
};

struct Lane {
  uint32_t number = 0;
  std::vector<Step> steps;
};

struct Plan {
  std::vector<Lane> lanes;  // by rising number
};

// In those that know hosts, each lane has a leader on each host: it takes the operands of the other ranks of its host,
// and gives them the result. Leaders change from lane to lane, so that all ranks of a host work for its link, and what
// crosses the link does not grow with the number of ranks.
enum class Algorithm : uint8_t {
  kExchange,  // everybody sends everything to everybody and reduces alone: one hop; allreduce only
  kDirect,    // each rank owns a share, gets it from everybody, and gives the result to everybody: two hops
  kRing,      // reduce-scatter and allgather around a ring of all ranks, host after host: 2 (n - 1) hops
  kDoubling,  // hosts exchange the whole vector with one at distance 1, 2, 4, ...: log2(hosts) hops; allreduce only
  kTrees,     // each share up and down a binomial tree of hosts with a root of its own: 2 log2(hosts) hops; likewise
  kHierarchical,  // around a ring of hosts: 2 (hosts - 1) hops
  kStars,         // each share straight to the host that reduces it, and back: 2 hops; for values that lose by each hop
};

// How a broadcast gets from host to host.
enum class Spread : uint8_t {
  kTree,   // binomial: few hops; the root's host sends log2(hosts) times
  kChain,  // one after the other: each host receives once and sends once, frame behind frame
};

// How many elements a frame may hold, who takes part, and where.
struct PlanContext {
  int rank = 0;                 // set rank
  int size = 1;                 // ranks in the set
  int64_t chunk = 1;            // elements in a frame at most, > 0
  std::vector<int> hosts = {};  // by set rank; equal numbers share a host. Empty: all are on one host
};

// Splits `count` elements among `size` ranks: sizes differ by at most one, the longer shares first.
[[nodiscard]] Range share_of(int64_t count, int rank, int size);

// All ranks end with the reduction of `count` elements in output.
[[nodiscard]] Plan plan_allreduce(const PlanContext& context, Algorithm algorithm, int64_t count);

// Rank r ends with the reduction of `counts[r]` elements, which start at the sum of the counts before
// it in the input, and at 0 in its output.
[[nodiscard]] Plan plan_reducescatter(const PlanContext& context, Algorithm algorithm,
                                      const std::vector<int64_t>& counts);

// All ranks end with the blocks of all ranks one after the other; rank r gives `counts[r]` elements.
[[nodiscard]] Plan plan_allgather(const PlanContext& context, Algorithm algorithm, const std::vector<int64_t>& counts);

// All ranks end with the root's `count` elements. The root stores too (its output may be another buffer). Each host
// gets them over its link once.
[[nodiscard]] Plan plan_broadcast(const PlanContext& context, int root, int64_t count, Spread spread = Spread::kTree);

// counts[s][d] elements go from rank s to rank d; blocks lie one after the other in input and output.
[[nodiscard]] Plan plan_alltoall(const PlanContext& context, const std::vector<std::vector<int64_t>>& counts);

// Rank 1 of two ends with rank 0's `count` elements. Its lanes have numbers that no plan above has, so that it may run
// beside one under the same sequence number.
[[nodiscard]] Plan plan_transfer(const PlanContext& context, int64_t count);

}  // namespace hvd
