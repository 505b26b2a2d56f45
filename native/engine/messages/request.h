// What ranks tell each other about an operation.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "base/buffer.h"
#include "base/quantization.h"
#include "base/wire.h"

namespace hvd {

// The one name of join() in a process set: a rank can only join once at a time.
inline constexpr const char* kJoinName = "join.noname";

struct TensorSpec {
  DType dtype = DType::kFloat32;
  Shape shape;
};

// What the members of a set must agree on. Several tensors form a group.
struct RequestSpec {
  OpKind kind = OpKind::kAllreduce;
  std::string name;
  ReduceOp reduce_op = ReduceOp::kSum;
  double prescale = 1.0;
  double postscale = 1.0;
  int32_t root = -1;  // global rank; of a send the receiver, of a receive the sender, negative for any
  InlineVector<TensorSpec, 1> tensors;
  Quantization quantization = Quantization::kNone;  // allreduce: how floating point travels between hosts
  bool on_gpu = false;                              // all tensors, though each rank's may be on another one
  bool weighted = false;                            // Average weighs each rank's values
  bool divide_by_initial_world_size = true;         // join: what Average divides by until all ranks have joined
  std::vector<int64_t> ranks;  // add_process_set: its members; remove_process_set: its engine id, and
                               // `by_members` the members behind it; share_memory: how many bytes
  bool by_members = false;     // a process set comes or goes by agreement of its members
  int32_t tag = 0;             // of a send and the receive that it meets
  bool cacheable = true;       // need not agree
  uint64_t unnamed = 0;        // counts the operations without a name, from 1; 0 if it has one

  // A 64-bit digest of all that must agree. In allgather and alltoall the first dimension may differ.
  [[nodiscard]] uint64_t digest() const;
  // "allreduce(Sum) of float32 [2, 3] on a GPU at train.py:12"; the CPU is not named, and the call site may be empty.
  [[nodiscard]] std::string describe(const std::string& call_site) const;
  [[nodiscard]] size_t total_bytes() const;
  [[nodiscard]] bool first_dimension_differs() const { return traits_of(kind).rows_may_differ; }
  // The global ranks that must announce it, if that is not up to the members of its process set.
  [[nodiscard]] std::span<const int64_t> askers() const;

  void write(WireWriter& out) const;
  static RequestSpec read(WireReader& in);
};

// "I am ready for this name": in full the first time, then by the number that the coordinator gave to the name.
struct Announcement {
  static constexpr size_t kLeastBytes = 57;  // on the wire

  bool full = true;
  uint32_t id = 0;
  uint64_t digest = 0;
  RequestSpec spec;               // if full
  uint32_t site = 0;              // number of the call site among those of this member; 0 is none
  std::string new_site;           // "file:line", when the number is used for the first time
  double weight = 1.0;            // of a weighted average
  int32_t priority = 0;           // what has more goes first
  int32_t device = kCpuDevice;    // of the tensors; join: that the rank takes part with in operations on GPUs
  std::vector<int64_t> extents;   // allgather: first dimension of each tensor; alltoall: rows for each member
  std::vector<int64_t> expected;  // likewise: rows of each tensor from each member that there is memory for; empty: any
  uint64_t place = 0;             // allreduce in place: where in shared memory all values lie; 0 if they do not
  Bytes payload;                  // small allreduce: the values; prescaled, but if weighted. Small send: the values

  void write(WireWriter& out) const;
  static Announcement read(WireReader& in);
};

// A name in an answer of the coordinator.
struct NameRef {
  bool by_id = false;
  uint32_t id = 0;
  std::string name;
  int64_t new_id = -1;                        // from now on the name has this number
  double total_weight = 0.0;                  // of a weighted average
  std::vector<std::vector<int64_t>> extents;  // by set rank
  std::vector<RequestSpec> spec;              // one, if members are absent: they do not know it

  void write(WireWriter& out) const;
  static NameRef read(WireReader& in);
};

// The coordinator's order: execute these together, or take this result, or fail.
struct Response {
  static constexpr size_t kLeastBytes = 26;  // on the wire

  enum class Kind : uint8_t { kExecute, kResult, kError };
  Kind kind = Kind::kExecute;
  std::vector<NameRef> names;    // one, but for kExecute of fused operations
  int32_t num_averaged = 0;      // by how many members Average divides
  int32_t priority = 0;          // the highest that a member gave one of the names
  std::vector<int32_t> absent;   // set ranks that have joined and take part with neutral values
  std::vector<int32_t> devices;  // of tensors on GPUs: the device of each set rank
  bool direct = false;           // all values lie at the same places of shared memory
  int32_t peer = -1;             // of a send or receive: the set rank at the other end
  Bytes payload;                 // kResult: reduced or sent values, empty for a barrier
  ErrorKind error_kind = ErrorKind::kMismatch;
  std::string message;

  [[nodiscard]] bool lacks(int set_rank) const;

  void write(WireWriter& out) const;
  static Response read(WireReader& in);
};

}  // namespace hvd
