// How the ranks of a process set choose the way of tensors on GPUs: each tells the others what it has, and all come to
// the same decision from that.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "base/wire.h"

namespace hvd {

enum class GpuOperations : uint8_t {
  kAuto,    // NCCL if all ranks can use it
  kNccl,    // NCCL, or an error
  kStaged,  // through host memory
};

// What one rank tells.
struct GpuCapabilities {
  static constexpr size_t kBytes = 1024;  // on the wire, whatever is in it

  GpuOperations operations = GpuOperations::kAuto;
  bool deterministic = false;
  uint64_t chunk_bytes = 0;  // of the way through host memory
  bool is_rccl = false;
  int version = 0;             // of NCCL: 22907 is 2.29.7
  std::string trouble = {};    // why NCCL cannot be used here; empty if it can
  std::string gpu = {};        // its UUID
  std::string unique_id = {};  // of a communicator, from set rank 0

  // What is too long of `trouble` is cut off.
  [[nodiscard]] Bytes encode() const;
  // Throws Error (kInternal) if these bytes are no capabilities.
  static GpuCapabilities decode(std::span<const std::byte> bytes);
};

struct GpuPath {
  enum class Kind : uint8_t { kNccl, kStaged, kRefused };
  Kind kind = Kind::kStaged;
  bool by_need = false;     // NCCL would have been better
  std::string reason = {};  // of the other two
};

// By set rank: the capabilities, and what messages call the members.
[[nodiscard]] GpuPath choose_gpu_path(const std::vector<GpuCapabilities>& all_capabilities,
                                      const std::vector<std::string>& names);

// "2.29.7"
[[nodiscard]] std::string nccl_version_text(int version);

}  // namespace hvd
