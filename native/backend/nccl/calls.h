// Which calls of NCCL a batch becomes: decided here, made by the thread that calls NCCL.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "backend/backend.h"
#include "backend/nccl/abi.h"

namespace hvd::nccl {

struct Call {
  using Kind = CallKind;
  Kind kind{};
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  size_t count = 0;
  int peer = 0;  // the root, or the other rank; by set rank
};

// What stays on this rank.
struct Copy {
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  size_t bytes = 0;
};

// One group of NCCL, and what is copied beside it. No call has zero elements, and ranks with nothing to send or to
// receive make no call.
struct Calls {
  DataType dtype = DataType::kUInt8;
  RedOp op = kSum;
  std::optional<double> factor;  // the operation is a sum of this rank's values times the factor
  std::vector<Call> calls;
  std::vector<Copy> copies;
};

// Whether NCCL has a type and an operation for it; depends only on what is the same on all members.
[[nodiscard]] bool serves(const Batch& batch);

// A member that is alone calls nothing, as the versions before 2.29.7 leave elements out if there is one rank
// (NVIDIA/nccl#1950), unless `alone_too`.
// Throws Error (kInternal) for what NCCL does not have.
[[nodiscard]] Calls calls_of(Collective collective, const Batch& batch, bool alone_too);

// The function of NCCL that makes the call, for messages.
[[nodiscard]] const char* name_of(CallKind kind);
// Makes it.
[[nodiscard]] Result make(const Functions& functions, const Call& call, DataType dtype, RedOp op, RawCommunicator comm,
                          Stream stream);

}  // namespace hvd::nccl
