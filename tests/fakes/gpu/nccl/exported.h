// How functions of NCCL begin and end.
#pragma once

#include "nccl/registry.h"

#define EXPORTED extern "C" __attribute__((visibility("default")))

namespace fake_nccl {

// Errors in a group are also what ncclGroupEnd returns.
template <typename Body>
Result guarded(const char* function, const Body& body) {
  count_call(function);
  Result result = kSuccess;
  try {
    result = body();
  } catch (const Failure& failure) {
    set_last_error(failure.what());
    result = failure.code;
  }
  Group& group = group_of_thread();
  if (group.depth > 0 && group.error == kSuccess && result != kSuccess && result != kInProgress) group.error = result;
  return result;
}

}  // namespace fake_nccl
