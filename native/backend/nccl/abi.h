// The part of NCCL's interface that is used, declared by hand and found at run time. Values are those of the public
// interface since NCCL 2.18; RCCL has the same.
#pragma once

#include <climits>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "device/driver.h"

namespace hvd::nccl {

using device::Stream;
using RawCommunicator = struct OpaqueCommunicator*;

// ncclResult_t
using Result = int;
inline constexpr Result kSuccess = 0;
inline constexpr Result kUnhandledCudaError = 1;
inline constexpr Result kSystemError = 2;
inline constexpr Result kInternalError = 3;
inline constexpr Result kInvalidArgument = 4;
inline constexpr Result kInvalidUsage = 5;
inline constexpr Result kRemoteError = 6;
inline constexpr Result kInProgress = 7;

// ncclDataType_t
enum class DataType : int {
  kInt8 = 0,
  kUInt8 = 1,
  kInt32 = 2,
  kUInt32 = 3,
  kInt64 = 4,
  kUInt64 = 5,
  kFloat16 = 6,
  kFloat32 = 7,
  kFloat64 = 8,
  kBFloat16 = 9,
};

// ncclRedOp_t; those that are made at run time have other numbers.
using RedOp = int;
inline constexpr RedOp kSum = 0;
inline constexpr RedOp kProd = 1;
inline constexpr RedOp kMax = 2;
inline constexpr RedOp kMin = 3;
inline constexpr RedOp kAvg = 4;

// ncclScalarResidence_t: the scalar is read during the call.
inline constexpr int kScalarHostImmediate = 1;

struct UniqueId {
  char bytes[128];
};

inline constexpr unsigned kConfigMagic = 0xcafebeef;
inline constexpr unsigned kConfigVersion =
    21801;  // the fields below are those of 2.18.1; later ones get their defaults
inline constexpr int kUndefined = INT_MIN;

// ncclConfig_t
struct Config {
  size_t size = sizeof(Config);
  unsigned magic = kConfigMagic;
  unsigned version = kConfigVersion;
  int blocking = kUndefined;
  int cga_cluster_size = kUndefined;
  int min_ctas = kUndefined;
  int max_ctas = kUndefined;
  const char* net_name = nullptr;
  int split_share = kUndefined;
};

// What a batch becomes.
enum class CallKind : uint8_t { kAllReduce, kReduce, kBroadcast, kReduceScatter, kAllGather, kSend, kRecv };

// Member, name in the library, signature.
#define HVD_NCCL_FUNCTIONS(X)                                                                                        \
  X(get_version, ncclGetVersion, Result(int* version))                                                               \
  X(get_unique_id, ncclGetUniqueId, Result(UniqueId* id))                                                            \
  X(get_error_string, ncclGetErrorString, const char*(Result result))                                                \
  X(comm_init_rank_config, ncclCommInitRankConfig,                                                                   \
    Result(RawCommunicator* comm, int size, UniqueId id, int rank, Config* config))                                  \
  X(comm_finalize, ncclCommFinalize, Result(RawCommunicator comm))                                                   \
  X(comm_destroy, ncclCommDestroy, Result(RawCommunicator comm))                                                     \
  X(comm_abort, ncclCommAbort, Result(RawCommunicator comm))                                                         \
  X(comm_get_async_error, ncclCommGetAsyncError, Result(RawCommunicator comm, Result* error))                        \
  X(group_start, ncclGroupStart, Result())                                                                           \
  X(group_end, ncclGroupEnd, Result())                                                                               \
  X(all_reduce, ncclAllReduce,                                                                                       \
    Result(const void* from, void* to, size_t count, DataType dtype, RedOp op, RawCommunicator comm, Stream stream)) \
  X(reduce, ncclReduce,                                                                                              \
    Result(const void* from, void* to, size_t count, DataType dtype, RedOp op, int root, RawCommunicator comm,       \
           Stream stream))                                                                                           \
  X(broadcast, ncclBroadcast,                                                                                        \
    Result(const void* from, void* to, size_t count, DataType dtype, int root, RawCommunicator comm, Stream stream)) \
  X(reduce_scatter, ncclReduceScatter,                                                                               \
    Result(const void* from, void* to, size_t received, DataType dtype, RedOp op, RawCommunicator comm,              \
           Stream stream))                                                                                           \
  X(all_gather, ncclAllGather,                                                                                       \
    Result(const void* from, void* to, size_t sent, DataType dtype, RawCommunicator comm, Stream stream))            \
  X(send, ncclSend,                                                                                                  \
    Result(const void* from, size_t count, DataType dtype, int peer, RawCommunicator comm, Stream stream))           \
  X(recv, ncclRecv, Result(void* to, size_t count, DataType dtype, int peer, RawCommunicator comm, Stream stream))   \
  X(red_op_create_pre_mul_sum, ncclRedOpCreatePreMulSum,                                                             \
    Result(RedOp* op, void* scalar, DataType dtype, int residence, RawCommunicator comm))                            \
  X(red_op_destroy, ncclRedOpDestroy, Result(RedOp op, RawCommunicator comm))

struct Functions {
#define HVD_DECLARE(member, symbol, signature) std::add_pointer_t<signature> member = nullptr;
  HVD_NCCL_FUNCTIONS(HVD_DECLARE)
#undef HVD_DECLARE
  const char* (*get_last_error)(RawCommunicator comm) = nullptr;  // "ncclGetLastError", if there is one
};

}  // namespace hvd::nccl
