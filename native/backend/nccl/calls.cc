#include "backend/nccl/calls.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"

namespace hvd::nccl {
namespace {

// bool travels as bytes of 0 and 1, of which "or" is the maximum.
std::optional<DataType> data_type(DType dtype) {
  switch (dtype) {
    case DType::kBool:
    case DType::kUInt8:
      return DataType::kUInt8;
    case DType::kInt8:
      return DataType::kInt8;
    case DType::kUInt32:
      return DataType::kUInt32;
    case DType::kInt32:
      return DataType::kInt32;
    case DType::kUInt64:
      return DataType::kUInt64;
    case DType::kInt64:
      return DataType::kInt64;
    case DType::kFloat16:
      return DataType::kFloat16;
    case DType::kBFloat16:
      return DataType::kBFloat16;
    case DType::kFloat32:
      return DataType::kFloat32;
    case DType::kFloat64:
      return DataType::kFloat64;
    case DType::kUInt16:
    case DType::kInt16:
      break;
  }
  return std::nullopt;
}

RedOp operation(const Batch& batch) {
  const bool is_bool = batch.dtype == DType::kBool;
  switch (batch.op) {
    case ReduceOp::kSum:
      return is_bool ? kMax : kSum;
    case ReduceOp::kProduct:
      return is_bool ? kMin : kProd;
    case ReduceOp::kMin:
      return kMin;
    case ReduceOp::kMax:
      return kMax;
    case ReduceOp::kAverage:
    case ReduceOp::kAdasum:
      break;
  }
  throw Error(ErrorKind::kInternal, batch.what + ": NCCL was given a reduction that it does not have");
}

// A stand-in for a rank that has joined has no factor of its own, so this rank's alone must not decide.
bool is_prescaled(const Batch& batch) { return batch.prescaled || batch.prescale != 1.0; }
bool has_factor(const Batch& batch) {
  return batch.dtype != DType::kBool && (is_prescaled(batch) || batch.postscale != 1.0 || batch.divisor != 1);
}

Calls reduction(const Batch& batch) {
  const auto dtype = data_type(batch.dtype);
  if (!dtype) throw Error(ErrorKind::kInternal, batch.what + ": NCCL was given a type that it does not have");
  Calls made;
  made.dtype = *dtype;
  made.op = operation(batch);
  if (!has_factor(batch)) return made;
  const bool averages = batch.divisor == static_cast<int>(batch.members.size()) && batch.postscale == 1.0;
  if (averages && !is_prescaled(batch)) {
    made.op = kAvg;
  } else {
    made.factor = batch.prescale * batch.postscale / batch.divisor;
  }
  return made;
}

const Extent& only(const std::vector<Extent>& extents, const Batch& batch) {
  if (extents.size() == 1) return extents.front();
  throw Error(ErrorKind::kInternal, batch.what + ": NCCL was given several tensors where there can be one");
}

bool is_alone(const Batch& batch) { return batch.members.size() == 1; }

void copy(Calls& made, const std::byte* from, std::byte* to, size_t bytes) {
  if (bytes > 0 && from != to) made.copies.push_back({from, to, bytes});
}

void copy_all(Calls& made, const Batch& batch) {
  for (size_t i = 0; i < batch.inputs.size(); ++i) {
    const size_t bytes = static_cast<size_t>(batch.inputs[i].count) * size_of(batch.dtype);
    copy(made, batch.inputs[i].data, batch.outputs.at(i).data, bytes);
  }
}

bool all_equal(const std::vector<int64_t>& counts) {
  return std::all_of(counts.begin(), counts.end(), [&](int64_t count) { return count == counts.front(); });
}

Calls allreduce_calls(const Batch& batch, bool alone_too) {
  Calls made = reduction(batch);
  if (is_alone(batch) && !alone_too) {
    copy_all(made, batch);
    return made;
  }
  for (size_t i = 0; i < batch.inputs.size(); ++i) {
    const Extent& input = batch.inputs[i];
    if (input.count == 0) continue;
    made.calls.push_back({.kind = Call::Kind::kAllReduce,
                          .from = input.data,
                          .to = batch.outputs.at(i).data,
                          .count = static_cast<size_t>(input.count)});
  }
  return made;
}

Calls reducescatter_calls(const Batch& batch, bool alone_too) {
  const std::vector<int64_t>& counts = batch.counts;
  Calls made = reduction(batch);
  const std::byte* from = only(batch.inputs, batch).data;
  std::byte* to = only(batch.outputs, batch).data;
  if (is_alone(batch) && !alone_too) {
    copy_all(made, batch);
  } else if (all_equal(counts)) {
    const auto count = static_cast<size_t>(counts.front());
    if (count > 0) made.calls.push_back({.kind = Call::Kind::kReduceScatter, .from = from, .to = to, .count = count});
  } else {
    for (size_t root = 0; root < counts.size(); ++root) {
      const auto count = static_cast<size_t>(counts[root]);
      if (count > 0) {
        const auto peer = static_cast<int>(root);
        made.calls.push_back({.kind = Call::Kind::kReduce,
                              .from = from,
                              .to = peer == batch.set_rank ? to : nullptr,
                              .count = count,
                              .peer = peer});
      }
      from += count * size_of(batch.dtype);
    }
  }
  return made;
}

Calls allgather_calls(const Batch& batch, bool alone_too) {
  const std::vector<int64_t>& counts = batch.counts;
  Calls made;
  const size_t size = size_of(batch.dtype);
  const std::byte* from = only(batch.inputs, batch).data;
  std::byte* to = only(batch.outputs, batch).data;
  if (is_alone(batch) && !alone_too) {
    copy_all(made, batch);
  } else if (all_equal(counts)) {
    const size_t bytes = static_cast<size_t>(counts.front()) * size;
    if (bytes > 0) made.calls.push_back({.kind = Call::Kind::kAllGather, .from = from, .to = to, .count = bytes});
  } else {
    for (size_t root = 0; root < counts.size(); ++root) {
      const size_t bytes = static_cast<size_t>(counts[root]) * size;
      const auto peer = static_cast<int>(root);
      if (bytes > 0) {
        made.calls.push_back({.kind = Call::Kind::kBroadcast,
                              .from = peer == batch.set_rank ? from : to,
                              .to = to,
                              .count = bytes,
                              .peer = peer});
      }
      to += bytes;
    }
  }
  return made;
}

Calls broadcast_calls(const Batch& batch, bool alone_too) {
  Calls made;
  if (is_alone(batch) && !alone_too) {
    copy_all(made, batch);
    return made;
  }
  for (size_t i = 0; i < batch.outputs.size(); ++i) {
    const Extent& output = batch.outputs[i];
    if (output.count == 0) continue;
    const bool gives = batch.root == batch.set_rank;
    made.calls.push_back({.kind = Call::Kind::kBroadcast,
                          .from = gives ? batch.inputs.at(i).data : output.data,
                          .to = output.data,
                          .count = static_cast<size_t>(output.count) * size_of(batch.dtype),
                          .peer = batch.root});
  }
  return made;
}

Calls alltoall_calls(const Batch& batch, bool alone_too) {
  const std::vector<std::vector<int64_t>>& counts = batch.splits;
  Calls made;
  const size_t size = size_of(batch.dtype);
  const auto me = static_cast<size_t>(batch.set_rank);
  const std::byte* from = only(batch.inputs, batch).data;
  std::byte* to = only(batch.outputs, batch).data;
  const bool own_too = is_alone(batch) && alone_too;
  for (size_t peer = 0; peer < counts.size(); ++peer) {
    const size_t sent = static_cast<size_t>(counts.at(me).at(peer)) * size;
    const size_t received = static_cast<size_t>(counts.at(peer).at(me)) * size;
    const auto rank = static_cast<int>(peer);
    if (peer == me && !own_too) {
      copy(made, from, to, sent);
    } else {
      if (sent > 0) made.calls.push_back({.kind = Call::Kind::kSend, .from = from, .count = sent, .peer = rank});
      if (received > 0) made.calls.push_back({.kind = Call::Kind::kRecv, .to = to, .count = received, .peer = rank});
    }
    from += sent;
    to += received;
  }
  return made;
}

}  // namespace

bool serves(const Batch& batch) {
  if (!data_type(batch.dtype)) return false;
  if (!has_factor(batch)) return true;
  return is_floating(batch.dtype) && batch.op == ReduceOp::kSum && !is_alone(batch);
}

Calls calls_of(Collective collective, const Batch& batch, bool alone_too) {
  switch (collective) {
    case Collective::kAllreduce:
      return allreduce_calls(batch, alone_too);
    case Collective::kAdasum:
      throw Error(ErrorKind::kInternal, batch.what + ": NCCL has no Adasum");
    case Collective::kReducescatter:
      return reducescatter_calls(batch, alone_too);
    case Collective::kAllgather:
      return allgather_calls(batch, alone_too);
    case Collective::kBroadcast:
      return broadcast_calls(batch, alone_too);
    case Collective::kAlltoall:
      return alltoall_calls(batch, alone_too);
  }
  throw Error(ErrorKind::kInternal, batch.what + ": NCCL was given an unknown collective");
}

const char* name_of(CallKind kind) {
  switch (kind) {
    case CallKind::kAllReduce:
      return "ncclAllReduce";
    case CallKind::kReduce:
      return "ncclReduce";
    case CallKind::kBroadcast:
      return "ncclBroadcast";
    case CallKind::kReduceScatter:
      return "ncclReduceScatter";
    case CallKind::kAllGather:
      return "ncclAllGather";
    case CallKind::kSend:
      return "ncclSend";
    case CallKind::kRecv:
      return "ncclRecv";
  }
  return "an unknown call";
}

Result make(const Functions& functions, const Call& call, DataType dtype, RedOp op, RawCommunicator comm,
            Stream stream) {
  switch (call.kind) {
    case CallKind::kAllReduce:
      return functions.all_reduce(call.from, call.to, call.count, dtype, op, comm, stream);
    case CallKind::kReduce:
      return functions.reduce(call.from, call.to, call.count, dtype, op, call.peer, comm, stream);
    case CallKind::kBroadcast:
      return functions.broadcast(call.from, call.to, call.count, dtype, call.peer, comm, stream);
    case CallKind::kReduceScatter:
      return functions.reduce_scatter(call.from, call.to, call.count, dtype, op, comm, stream);
    case CallKind::kAllGather:
      return functions.all_gather(call.from, call.to, call.count, dtype, comm, stream);
    case CallKind::kSend:
      return functions.send(call.from, call.count, dtype, call.peer, comm, stream);
    case CallKind::kRecv:
      return functions.recv(call.to, call.count, dtype, call.peer, comm, stream);
  }
  return kInvalidArgument;
}

}  // namespace hvd::nccl
