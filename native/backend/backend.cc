#include "backend/backend.h"

namespace hvd {

const char* name_of(OpKind kind) {
  switch (kind) {
    case OpKind::kAllreduce:
      return "allreduce";
    case OpKind::kAllgather:
      return "allgather";
    case OpKind::kBroadcast:
      return "broadcast";
    case OpKind::kAlltoall:
      return "alltoall";
    case OpKind::kReducescatter:
      return "reducescatter";
    case OpKind::kBarrier:
      return "barrier";
    case OpKind::kJoin:
      return "join";
    case OpKind::kAddProcessSet:
      return "add_process_set";
    case OpKind::kRemoveProcessSet:
      return "remove_process_set";
    case OpKind::kShareMemory:
      return "share_memory";
  }
  return "unknown";
}

}  // namespace hvd
