// Handles of communicators; never given out twice, so that a stale one is noticed.
#pragma once

#include <shared_mutex>

#include "nccl/communicator.h"

namespace fake_nccl {

using SharedCommunicator = std::shared_ptr<Communicator>;

[[nodiscard]] void* add_communicator(SharedCommunicator communicator);
// Throws Failure if there is none.
[[nodiscard]] SharedCommunicator find_communicator(const char* call, const void* handle);
void remove_communicator(const void* handle);
[[nodiscard]] int64_t num_communicators();

// What lies between ncclGroupStart and ncclGroupEnd on this thread.
struct Group {
  struct Member {
    SharedCommunicator communicator;
    std::vector<Operation> operations;
    void* stream = nullptr;
    fake_cuda::StreamPlace place;
  };

  int depth = 0;
  std::vector<Member> members;
  std::vector<SharedCommunicator> starting;
  Result error = kSuccess;
};
[[nodiscard]] Group& group_of_thread();

void add_to_group(const SharedCommunicator& communicator, Operation operation, void* stream);
// Closes the outermost group.
Result end_group(bool is_explicit);

}  // namespace fake_nccl
