// The functions of NCCL: collectives and their operators.
#include <cstring>

#include "nccl/arithmetic.h"
#include "nccl/exported.h"

namespace fake_nccl {
namespace {

void check_operation(const Communicator& communicator, Operation& operation) {
  if (size_of(operation.dtype) == 0) throw Failure(kInvalidArgument, "no such dtype");
  if (operation.root < 0 || operation.root >= communicator.spec().size) throw Failure(kInvalidArgument, "no such rank");
  if (operation.op < kFirstOwn) {
    if (operation.op < 0) throw Failure(kInvalidArgument, "no such operator");
    return;
  }
  operation.premultiplied = communicator.operator_of(operation.op);
  if (!operation.premultiplied) {
    note_wrong_use("a collective was given an operator that its communicator does not have");
    throw Failure(kInvalidArgument, "no such operator");
  }
  if (operation.premultiplied->dtype != operation.dtype) {
    throw Failure(kInvalidArgument, "the operator is of another dtype");
  }
}

// `call`: in the words of injections.
Result submit(const char* function, const char* call, Operation operation, void* comm, void* stream) {
  return guarded(function, [&] {
    const SharedCommunicator communicator = find_communicator(function, comm);
    if (const Result failed = communicator->check(function)) return failed;
    check_operation(*communicator, operation);
    if (operation.count == 0 && !is_alone(operation.kind)) return kSuccess;
    operation.action = communicator->next_action(call);
    if (operation.action == Action::kFail) throw Failure(kSystemError, std::string("the test lets ") + call + " fail");
    const bool reads = operation.kind != Kind::kRecv && operation.kind != Kind::kBroadcast;
    const bool writes = operation.kind != Kind::kSend && operation.kind != Kind::kReduce;
    if (operation.count > 0 && ((reads && operation.send == nullptr) || (writes && operation.recv == nullptr))) {
      throw Failure(kInvalidArgument, "no memory was given");
    }
    add_to_group(communicator, std::move(operation), stream);
    return group_of_thread().depth > 0 ? kSuccess : end_group(false);
  });
}

}  // namespace

EXPORTED Result ncclAllReduce(const void* send, void* recv, size_t count, Dtype dtype, Op op, void* comm,
                              void* stream) {
  return submit("ncclAllReduce", "allreduce", {Kind::kAllreduce, send, recv, count, dtype, op, 0, {}, 0, {}}, comm,
                stream);
}

EXPORTED Result ncclReduce(const void* send, void* recv, size_t count, Dtype dtype, Op op, int root, void* comm,
                           void* stream) {
  return submit("ncclReduce", "reduce", {Kind::kReduce, send, recv, count, dtype, op, root, {}, 0, {}}, comm, stream);
}

EXPORTED Result ncclBroadcast(const void* send, void* recv, size_t count, Dtype dtype, int root, void* comm,
                              void* stream) {
  return submit("ncclBroadcast", "broadcast", {Kind::kBroadcast, send, recv, count, dtype, kSum, root, {}, 0, {}}, comm,
                stream);
}

EXPORTED Result ncclReduceScatter(const void* send, void* recv, size_t count, Dtype dtype, Op op, void* comm,
                                  void* stream) {
  return submit("ncclReduceScatter", "reducescatter",
                {Kind::kReducescatter, send, recv, count, dtype, op, 0, {}, 0, {}}, comm, stream);
}

EXPORTED Result ncclAllGather(const void* send, void* recv, size_t count, Dtype dtype, void* comm, void* stream) {
  return submit("ncclAllGather", "allgather", {Kind::kAllgather, send, recv, count, dtype, kSum, 0, {}, 0, {}}, comm,
                stream);
}

EXPORTED Result ncclSend(const void* send, size_t count, Dtype dtype, int peer, void* comm, void* stream) {
  return submit("ncclSend", "send", {Kind::kSend, send, nullptr, count, dtype, kSum, peer, {}, 0, {}}, comm, stream);
}

EXPORTED Result ncclRecv(void* recv, size_t count, Dtype dtype, int peer, void* comm, void* stream) {
  return submit("ncclRecv", "recv", {Kind::kRecv, nullptr, recv, count, dtype, kSum, peer, {}, 0, {}}, comm, stream);
}

EXPORTED Result ncclRedOpCreatePreMulSum(Op* op, const void* scalar, Dtype dtype, int residence, void* comm) {
  return guarded("ncclRedOpCreatePreMulSum", [&] {
    const SharedCommunicator communicator = find_communicator("ncclRedOpCreatePreMulSum", comm);
    if (const Result failed = communicator->check("ncclRedOpCreatePreMulSum")) return failed;
    if (op == nullptr || scalar == nullptr || size_of(dtype) == 0) return kInvalidArgument;
    if (communicator->next_action("redop") == Action::kFail) throw Failure(kSystemError, "the test lets redop fail");
    Premultiplied made;
    made.dtype = dtype;
    if (residence == kScalarHostImmediate) {
      const auto* bytes = static_cast<const std::byte*>(scalar);
      made.scalar.assign(bytes, bytes + size_of(dtype));
    } else if (residence == kScalarDevice) {
      made.device_scalar = scalar;
    } else {
      return kInvalidArgument;
    }
    *op = communicator->add_operator(std::move(made));
    return kSuccess;
  });
}

EXPORTED Result ncclRedOpDestroy(Op op, void* comm) {
  return guarded("ncclRedOpDestroy", [&] {
    const SharedCommunicator communicator = find_communicator("ncclRedOpDestroy", comm);
    if (communicator->remove_operator(op)) return kSuccess;
    note_wrong_use("ncclRedOpDestroy was given an operator that the communicator does not have");
    return kInvalidArgument;
  });
}

}  // namespace fake_nccl
