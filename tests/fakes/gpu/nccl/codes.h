// Types and values of NCCL's interface, as its documentation has them.
#pragma once

#include <climits>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace fake_nccl {

using Result = int;
inline constexpr Result kSuccess = 0;
inline constexpr Result kUnhandledCudaError = 1;
inline constexpr Result kSystemError = 2;
inline constexpr Result kInternalError = 3;
inline constexpr Result kInvalidArgument = 4;
inline constexpr Result kInvalidUsage = 5;
inline constexpr Result kRemoteError = 6;
inline constexpr Result kInProgress = 7;

using Dtype = int;
inline constexpr Dtype kInt8 = 0;
inline constexpr Dtype kUint8 = 1;
inline constexpr Dtype kInt32 = 2;
inline constexpr Dtype kUint32 = 3;
inline constexpr Dtype kInt64 = 4;
inline constexpr Dtype kUint64 = 5;
inline constexpr Dtype kFloat16 = 6;
inline constexpr Dtype kFloat32 = 7;
inline constexpr Dtype kFloat64 = 8;
inline constexpr Dtype kBfloat16 = 9;

using Op = int;
inline constexpr Op kSum = 0;
inline constexpr Op kProd = 1;
inline constexpr Op kMax = 2;
inline constexpr Op kMin = 3;
inline constexpr Op kAvg = 4;
inline constexpr Op kFirstOwn = 5;  // of ncclRedOpCreatePreMulSum

inline constexpr int kScalarDevice = 0;
inline constexpr int kScalarHostImmediate = 1;

inline constexpr int kShrinkAbort = 1;

struct UniqueId {
  char internal[128];
};

inline constexpr unsigned kConfigMagic = 0xcafebeef;
inline constexpr int kUndefined = INT_MIN;
// What all versions of the structure begin with.
struct Config {
  size_t size;
  unsigned magic;
  unsigned version;
  int blocking;
  int cga_cluster_size;
  int min_ctas;
  int max_ctas;
};

// What a communicator fails with.
struct Failure : std::runtime_error {
  Failure(Result its_code, const std::string& text) : std::runtime_error(text), code(its_code) {}
  Result code;
};

// What ends when its communicator is aborted or its device has failed.
struct Ended : std::exception {};

}  // namespace fake_nccl
