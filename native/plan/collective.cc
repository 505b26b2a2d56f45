#include "plan/collective.h"

#include <string>

#include "base/error.h"

namespace hvd {

OpTraits traits_of(OpKind kind) {
  switch (kind) {
    case OpKind::kAllreduce:
      return {.name = "allreduce", .moves_data = true, .reduces = true, .fills_outputs = true};
    case OpKind::kAllgather:
      return {.name = "allgather", .moves_data = true, .by_rows = true, .rows_may_differ = true};
    case OpKind::kBroadcast:
      return {.name = "broadcast", .moves_data = true, .fills_outputs = true};
    case OpKind::kAlltoall:
      return {.name = "alltoall", .moves_data = true, .by_rows = true, .rows_may_differ = true};
    case OpKind::kReducescatter:
      return {.name = "reducescatter",
              .moves_data = true,
              .reduces = true,
              .sums_only = true,
              .scatters = true,
              .by_rows = true,
              .fills_outputs = true};
    case OpKind::kBarrier:
      return {.name = "barrier"};
    case OpKind::kJoin:
      return {.name = "join"};
    case OpKind::kAddProcessSet:
      return {.name = "add_process_set"};
    case OpKind::kRemoveProcessSet:
      return {.name = "remove_process_set"};
    case OpKind::kShareMemory:
      return {.name = "share_memory"};
    case OpKind::kSend:
      return {.name = "send", .moves_data = true, .is_transfer = true};
    case OpKind::kRecv:
      return {.name = "recv", .moves_data = true, .is_transfer = true};
  }
  return {};
}

Collective collective_of(OpKind kind, ReduceOp op) {
  switch (kind) {
    case OpKind::kAllreduce:
      return op == ReduceOp::kAdasum ? Collective::kAdasum : Collective::kAllreduce;
    case OpKind::kAllgather:
      return Collective::kAllgather;
    case OpKind::kBroadcast:
      return Collective::kBroadcast;
    case OpKind::kAlltoall:
      return Collective::kAlltoall;
    case OpKind::kReducescatter:
      return Collective::kReducescatter;
    case OpKind::kBarrier:
    case OpKind::kJoin:
    case OpKind::kAddProcessSet:
    case OpKind::kRemoveProcessSet:
    case OpKind::kShareMemory:
    case OpKind::kSend:
    case OpKind::kRecv:
      break;
  }
  throw Error(ErrorKind::kInternal, std::string(name_of(kind)) + " is not executed by all ranks of a set");
}

bool reduces(Collective collective) {
  switch (collective) {
    case Collective::kAllreduce:
    case Collective::kAdasum:
    case Collective::kReducescatter:
      return true;
    case Collective::kAllgather:
    case Collective::kBroadcast:
    case Collective::kAlltoall:
      break;
  }
  return false;
}

}  // namespace hvd
