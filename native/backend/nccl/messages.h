// What is said when NCCL fails: its words, and what users who saw the same found to be the cause.
#pragma once

#include <string>

#include "backend/nccl/abi.h"
#include "backend/nccl/library.h"
#include "base/error.h"

namespace hvd::nccl {

// An error of a call; its code tells whether another rank may be the cause.
class CallError : public Error {
 public:
  CallError(Result result, std::string message) : Error(ErrorKind::kInternal, std::move(message)), result_(result) {}
  // Whether a rank that died would look like this: the connections of the engine may tell which it was, soon.
  [[nodiscard]] bool may_follow_from_a_lost_rank() const { return result_ == kRemoteError || result_ == kSystemError; }

 private:
  Result result_;
};

// Throws CallError unless the result is success or "in progress". `who`: "rank 1"; `what`: "allreduce.x".
void check(const Library& library, Result result, const char* call, const std::string& who, const std::string& what,
           RawCommunicator comm);

// Known causes, with what to do about them.
[[nodiscard]] const char* likely_causes(Result result);

}  // namespace hvd::nccl
