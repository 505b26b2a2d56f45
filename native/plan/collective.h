// The collectives: what a caller can ask for, and what a backend executes. What they differ in is asked here, so that
// a collective is named where it is done, and nowhere else.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace hvd {

// What a caller can ask of a process set. The numbers are those of the wire and of the C interface.
enum class OpKind : uint8_t {
  kAllreduce,
  kAllgather,
  kBroadcast,
  kAlltoall,
  kReducescatter,
  kBarrier,
  kJoin,              // this rank takes part with neutral values until all ranks have joined
  kAddProcessSet,     // an agreement of all ranks; nothing is moved
  kRemoveProcessSet,  // likewise
  kShareMemory,       // likewise: an array of each rank that all ranks of the host see
  kSend,              // from one rank to another, which receives it; nobody else takes part
  kRecv,
};
inline constexpr OpKind kLastOpKind = OpKind::kRecv;
inline constexpr int kNumOpKinds = static_cast<int>(kLastOpKind) + 1;

// What a backend executes.
enum class Collective : uint8_t {
  kAllreduce,
  kAdasum,  // each tensor is combined by itself; the dtype is floating point, and the reduction means nothing
  kReducescatter,
  kAllgather,
  kBroadcast,
  kAlltoall,
};

// In which regards operations differ; all ranks see the same.
struct OpTraits {
  const char* name = "unknown";
  bool moves_data = false;       // takes tensors
  bool reduces = false;          // combines the values of the ranks by a ReduceOp, with factors
  bool sums_only = false;        // by Sum or Average, that is
  bool scatters = false;         // each rank ends with its share of the rows (share_of in plan/plan.h)
  bool by_rows = false;          // works along the first dimension, which a scalar does not have
  bool rows_may_differ = false;  // ranks may give different numbers of rows
  bool fills_outputs = false;    // the caller gives the memory of results; otherwise the engine allocates it
  bool is_transfer = false;      // between two ranks
};

[[nodiscard]] OpTraits traits_of(OpKind kind);
[[nodiscard]] inline const char* name_of(OpKind kind) { return traits_of(kind).name; }

// What executes an operation that moves data between all ranks. Throws Error (kInternal) for others.
[[nodiscard]] Collective collective_of(OpKind kind, ReduceOp op);

// Whether values of ranks are combined.
[[nodiscard]] bool reduces(Collective collective);

}  // namespace hvd
