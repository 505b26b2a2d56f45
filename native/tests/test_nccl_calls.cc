// What a batch becomes for NCCL, and which libraries are taken: decided without one.
#include <algorithm>
#include <numeric>

#include "backend/nccl/abi.h"
#include "backend/nccl/calls.h"
#include "backend/nccl/library.h"
#include "testing/check.h"
#include "testing/world.h"

namespace hvd::testing {
namespace {

using nccl::Call;
using nccl::Calls;

Batch batch_of(int size, int set_rank, DType dtype = DType::kFloat32, ReduceOp op = ReduceOp::kSum) {
  Batch batch;
  for (int rank = 0; rank < size; ++rank) batch.members.push_back(rank);
  batch.set_rank = set_rank;
  batch.dtype = dtype;
  batch.op = op;
  batch.what = "allreduce.x";
  return batch;
}

Calls calls_with(Collective collective, Batch batch, std::vector<int64_t> counts) {
  batch.counts = std::move(counts);
  return nccl::calls_of(collective, batch, false);
}

std::byte* at(size_t address) { return reinterpret_cast<std::byte*>(address); }

std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST("nccl calls: each tensor that is not empty has its call, in the order of the batch") {
  Batch batch = batch_of(2, 1);
  batch.inputs = {{at(0x1000), 5}, {at(0x2000), 0}, {at(0x3000), 7}};
  batch.outputs = {{at(0x1000), 5}, {at(0x4000), 0}, {at(0x5000), 7}};
  const Calls made = nccl::calls_of(Collective::kAllreduce, batch, false);
  REQUIRE(made.calls.size() == 2);
  CHECK(made.copies.empty());
  CHECK(made.op == nccl::kSum && !made.factor && made.dtype == nccl::DataType::kFloat32);
  CHECK(made.calls[0].from == at(0x1000) && made.calls[0].to == at(0x1000) && made.calls[0].count == 5);
  CHECK(made.calls[1].from == at(0x3000) && made.calls[1].to == at(0x5000) && made.calls[1].count == 7);
}

TEST("nccl calls: averages are NCCL's own, other factors a sum of products") {
  Batch batch = batch_of(4, 0);
  batch.divisor = 4;
  CHECK(nccl::serves(batch));
  CHECK_EQ(nccl::calls_of(Collective::kAllreduce, batch, false).op, nccl::kAvg);
  batch.prescaled = true;  // another member has a factor: all must call the same
  const Calls made = nccl::calls_of(Collective::kAllreduce, batch, false);
  CHECK_EQ(made.op, nccl::kSum);
  REQUIRE(made.factor.has_value());
  CHECK_EQ(*made.factor, 0.25);
  batch.prescale = 2.0;
  CHECK_EQ(nccl::calls_of(Collective::kAllreduce, batch, false).factor.value_or(0), 0.5);
}

TEST("nccl calls: bool is and-ed and or-ed, and has no factors") {
  Batch batch = batch_of(2, 0, DType::kBool);
  batch.postscale = 0.5;
  CHECK(nccl::serves(batch));
  CHECK_EQ(nccl::calls_of(Collective::kAllreduce, batch, false).op, nccl::kMax);
  CHECK(nccl::calls_of(Collective::kAllreduce, batch, false).dtype == nccl::DataType::kUInt8);
  batch.op = ReduceOp::kProduct;
  CHECK_EQ(nccl::calls_of(Collective::kAllreduce, batch, false).op, nccl::kMin);
}

TEST("nccl calls: what NCCL cannot do is known before") {
  CHECK(!nccl::serves(batch_of(2, 0, DType::kInt16)));
  CHECK(!nccl::serves(batch_of(2, 0, DType::kUInt16)));
  for (const DType dtype : {DType::kInt8, DType::kUInt32, DType::kInt64, DType::kFloat16, DType::kBFloat16}) {
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct})
      CHECK(nccl::serves(batch_of(2, 0, dtype, op)));
  }
  Batch integers = batch_of(2, 0, DType::kInt32);
  integers.postscale = 0.5;
  CHECK(!nccl::serves(integers));
  Batch least = batch_of(2, 0, DType::kFloat32, ReduceOp::kMin);
  least.prescaled = true;
  CHECK(!nccl::serves(least));
  Batch alone = batch_of(1, 0);
  CHECK(nccl::serves(alone));
  alone.postscale = 0.5;
  CHECK(!nccl::serves(alone));
}

TEST("nccl calls: unequal shares are reduced to one root after the other, and gathered from one after the other") {
  Batch batch = batch_of(3, 2, DType::kFloat64);
  batch.inputs = {{at(0x1000), 9}};
  batch.outputs = {{at(0x9000), 2}};
  const Calls reduced = calls_with(Collective::kReducescatter, batch, {7, 0, 2});
  REQUIRE(reduced.calls.size() == 2);
  CHECK(reduced.calls[0].kind == Call::Kind::kReduce && reduced.calls[0].peer == 0 && reduced.calls[0].to == nullptr);
  CHECK(reduced.calls[1].peer == 2 && reduced.calls[1].from == at(0x1000 + 56) && reduced.calls[1].to == at(0x9000));
  CHECK(calls_with(Collective::kReducescatter, batch, {3, 3, 3}).calls.at(0).kind == Call::Kind::kReduceScatter);
  CHECK(calls_with(Collective::kReducescatter, batch, {0, 0, 0}).calls.empty());

  Batch bytes = batch_of(3, 2, DType::kUInt8);
  bytes.inputs = {{at(0x1000), 2}};
  bytes.outputs = {{at(0x9000), 9}};
  const Calls gathered = calls_with(Collective::kAllgather, bytes, {7, 0, 2});
  REQUIRE(gathered.calls.size() == 2);
  CHECK(gathered.calls[0].kind == Call::Kind::kBroadcast && gathered.calls[0].count == 7);
  CHECK(gathered.calls[1].from == at(0x1000) && gathered.calls[1].to == at(0x9007) && gathered.calls[1].peer == 2);
  CHECK(calls_with(Collective::kAllgather, bytes, {3, 3, 3}).calls.at(0).kind == Call::Kind::kAllGather);
}

TEST("nccl calls: nothing is sent where nothing is, and what stays is copied") {
  Batch batch = batch_of(3, 1, DType::kUInt8);
  batch.inputs = {{at(0x1000), 5}};
  batch.outputs = {{at(0x9000), 6}};
  batch.splits = {{0, 4, 0}, {0, 2, 3}, {1, 0, 0}};
  const Calls made = nccl::calls_of(Collective::kAlltoall, batch, false);
  REQUIRE(made.calls.size() == 2);
  CHECK(made.calls[0].kind == Call::Kind::kRecv && made.calls[0].peer == 0 && made.calls[0].count == 4);
  CHECK(made.calls[1].kind == Call::Kind::kSend && made.calls[1].peer == 2 && made.calls[1].from == at(0x1002));
  REQUIRE(made.copies.size() == 1);
  CHECK(made.copies[0].from == at(0x1000) && made.copies[0].to == at(0x9004) && made.copies[0].bytes == 2);
}

TEST("nccl calls: a rank that is alone copies, in place nothing") {
  Batch batch = batch_of(1, 0);
  batch.inputs = {{at(0x1000), 5}, {at(0x2000), 3}};
  batch.outputs = {{at(0x1000), 5}, {at(0x4000), 3}};
  const Calls made = nccl::calls_of(Collective::kAllreduce, batch, false);
  CHECK(made.calls.empty());
  REQUIRE(made.copies.size() == 1);
  CHECK(made.copies[0].from == at(0x2000) && made.copies[0].bytes == 12);
  CHECK_EQ(nccl::calls_of(Collective::kAllreduce, batch, true).calls.size(), 2U);
}

TEST("nccl library: versions are written as NVIDIA writes them, and known faults named") {
  CHECK_EQ(nccl::version_text(22907), "2.29.7");
  CHECK_EQ(nccl::version_text(21805), "2.18.5");
  CHECK_EQ(nccl::version_text(2804), "2.8.4");
  CHECK(contains(nccl::known_fault(21801), "NCCL_PROTO=^LL128"));
  CHECK(contains(nccl::known_fault(23004), "NCCL_PXN_DISABLE=1"));
  CHECK_EQ(nccl::known_fault(22605), "");
  CHECK_EQ(nccl::known_fault(23007), "");
}

TEST("nccl library: what was tried is listed, with why it did not do") {
  const std::string none = error_of([] { static_cast<void>(nccl::load_library({})); });
  CHECK(contains(none, "no candidate was given"));
  const std::string text =
      error_of([] { static_cast<void>(nccl::load_library({"libc.so.6", "/nowhere/libnccl.so.2"})); });
  CHECK(contains(text, "libc.so.6: it lacks ncclGetVersion"));
  CHECK(contains(text, "/nowhere/libnccl.so.2: "));
  CHECK(contains(text, "cannot open shared object file"));
}

}  // namespace
}  // namespace hvd::testing
