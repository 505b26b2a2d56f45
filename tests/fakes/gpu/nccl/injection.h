// What a test wants to go wrong, by configure() or by the environment.
//
// HVD_FAKE_NCCL=word,word,...  of:
//   version:21203              what ncclGetVersion says
//   peers:remote_error         the loss of a peer is an asynchronous error; without it nothing is noticed
//   launch:now, launch:later   whether collectives of non-blocking communicators are on their stream when the call
//                              returns, or once its caller has asked for the state; without it in turns, where later
//                              is a moment after the call
//   ACTION:CALL:N@RANK         happens to the Nth (1 without it) CALL of each communicator in which this process is
//                              RANK (any, without it)
// ACTION is
//   fail         the call returns ncclSystemError
//   hang         the collective does not go on, nor does init; of all others the call does not return
//   async_error  the collective does not go on, and the communicator says ncclRemoteError; so does init
// CALL is init, unique_id (has no communicator), group_end, allreduce, reduce, broadcast, reducescatter, allgather,
// send, recv, redop, finalize, destroy, abort, shrink.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <string>

#include "nccl/codes.h"

namespace fake_nccl {

inline constexpr std::chrono::seconds kPatience{60};  // with what does not end by itself

[[nodiscard]] int version_of_library();  // version.cc

enum class Action { kNone, kFail, kHang, kAsyncError };
enum class Launch { kInTurns, kNow, kLater };

bool configure(const std::string& specification);
void release();
void reset();

[[nodiscard]] int version();
[[nodiscard]] bool notices_peers();
[[nodiscard]] Launch launch();

// What is to happen to the nth call of a communicator's rank.
[[nodiscard]] Action action_for(const std::string& call, int nth, int rank);
// Blocks until release(), `ends()` or 60 s.
void hang(const std::function<bool()>& ends);

void count_call(const char* function);
[[nodiscard]] int64_t calls_of(const std::string& function);

}  // namespace fake_nccl
