// Results of the staged path: those of the host's backend, bit for bit.
#include <sstream>

#include "testing/check.h"
#include "tests/test_staged_world.h"

namespace hvd::testing {
namespace {

constexpr DType kDTypes[] = {DType::kBool,     DType::kUInt8,   DType::kInt8,   DType::kUInt16, DType::kInt16,
                             DType::kUInt32,   DType::kInt32,   DType::kUInt64, DType::kInt64,  DType::kFloat16,
                             DType::kBFloat16, DType::kFloat32, DType::kFloat64};
constexpr DType kFloats[] = {DType::kFloat16, DType::kBFloat16, DType::kFloat32, DType::kFloat64};

void check_same(StagedWorld& world, const Work& work, const std::string& what) {
  static uint64_t seed = 0;
  ++seed;
  if (world.execute(work, seed) == host_results(world.size(), work, seed)) return;
  report(__FILE__, __LINE__,
         what + " of " + std::string(name_of(work.dtype)) + " on " + std::to_string(world.size()) +
             " ranks differs from what the host computes");
}

// Elements of a dtype in a chunk of the worlds here.
int64_t chunk_of(DType dtype) { return static_cast<int64_t>(1024 / size_of(dtype)); }

// A pool holds four chunks.
std::vector<int64_t> sizes_for(DType dtype) {
  const int64_t chunk = chunk_of(dtype);
  if (kSanitized) return {0, chunk + 1, 7 * chunk + 3};
  return {0, 1, chunk - 1, chunk, chunk + 1, 3 * chunk, 13 * chunk + 7};
}

TEST("staged: allreduce of every dtype and size gives what the host does") {
  const FakeCuda cuda;
  for (const int size : {2, 3, 4}) {
    StagedWorld world(cuda, {.size = size});
    for (const DType dtype : kDTypes) {
      for (const int64_t count : sizes_for(dtype)) {
        check_same(world, {.dtype = dtype, .tensors = {count}}, "sum of " + std::to_string(count));
      }
      for (const ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
        check_same(world, {.dtype = dtype, .op = op, .tensors = {3 * chunk_of(dtype) + 5}}, "another reduction");
      }
    }
  }
  CHECK_EQ(std::string(cuda.wrong_uses()), "");
}

TEST("staged: allreduce of several tensors, in place, with factors") {
  const FakeCuda cuda;
  CHECK(cuda.configure("strict"));
  for (const int size : {2, 3, 4}) {
    StagedWorld world(cuda, {.size = size});
    for (const DType dtype : kFloats) {
      const int64_t chunk = chunk_of(dtype);
      for (const bool in_place : {false, true}) {
        const Work work{.dtype = dtype,
                        .prescale = 0.5,
                        .postscale = 1.0 / size,
                        .in_place = in_place,
                        .tensors = {5, 0, chunk, 1, 2 * chunk - 6, 0, chunk + 1}};
        check_same(world, work, in_place ? "in place" : "several tensors");
      }
    }
  }
  CHECK_EQ(std::string(cuda.wrong_uses()), "");
}

TEST("staged: broadcast from every root, in place or not") {
  const FakeCuda cuda;
  for (const int size : {2, 3, 4}) {
    StagedWorld world(cuda, {.size = size});
    for (int root = 0; root < size; ++root) {
      for (const int64_t count : {0, 1, 1024, 9000}) {
        for (const bool in_place : {false, true}) {
          const Work work{.kind = OpKind::kBroadcast,
                          .dtype = DType::kUInt8,
                          .in_place = in_place,
                          .root = root,
                          .tensors = {count, 3, count / 2}};
          check_same(world, work, "broadcast");
        }
      }
    }
  }
}

TEST("staged: reducescatter with shares of any length") {
  const FakeCuda cuda;
  const std::vector<std::vector<int64_t>> all{
      {0, 0, 0, 0}, {1, 1, 1, 1}, {100, 99, 98, 97}, {0, 2000, 1, 0}, {1500, 1500, 1500, 1499}};
  for (const int size : {2, 3, 4}) {
    StagedWorld world(cuda, {.size = size});
    for (const DType dtype : kDTypes) {
      for (std::vector<int64_t> counts : all) {
        counts.resize(static_cast<size_t>(size));
        const double factor = is_floating(dtype) ? 0.25 : 1.0;
        check_same(world, {.kind = OpKind::kReducescatter, .dtype = dtype, .postscale = factor, .counts = {counts}},
                   "reducescatter");
        if (kSanitized && dtype != DType::kFloat16) break;
      }
    }
  }
}

TEST("staged: allgather with blocks of any length") {
  const FakeCuda cuda;
  const std::vector<std::vector<int64_t>> all{
      {0, 0, 0, 0}, {1, 0, 0, 0}, {0, 5000, 0, 1}, {700, 700, 700, 700}, {1, 1024, 4096, 333}};
  for (const int size : {2, 3, 4}) {
    StagedWorld world(cuda, {.size = size});
    for (std::vector<int64_t> counts : all) {
      counts.resize(static_cast<size_t>(size));
      check_same(world, {.kind = OpKind::kAllgather, .dtype = DType::kUInt8, .counts = {counts}}, "allgather");
      check_same(world, {.kind = OpKind::kAllgather, .dtype = DType::kFloat64, .counts = {counts}}, "allgather");
    }
  }
}

TEST("staged: alltoall with blocks of any length, also of one side only") {
  const FakeCuda cuda;
  using Matrix = std::vector<std::vector<int64_t>>;
  const std::vector<Matrix> all{
      {{0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}},
      {{0, 5000, 7, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}},
      {{0, 0, 0, 0}, {3000, 0, 0, 0}, {1, 0, 0, 0}, {999, 0, 0, 0}},
      {{400, 400, 400, 400}, {400, 400, 400, 400}, {400, 400, 400, 400}, {400, 400, 400, 400}},
      {{1, 2, 3, 4}, {1000, 0, 1, 50}, {0, 2048, 77, 1}, {9, 8, 7, 3000}},
  };
  for (const int size : {2, 3, 4}) {
    StagedWorld world(cuda, {.size = size});
    for (Matrix counts : all) {
      counts.resize(static_cast<size_t>(size));
      for (auto& row : counts) row.resize(static_cast<size_t>(size));
      check_same(world, {.kind = OpKind::kAlltoall, .dtype = DType::kUInt8, .counts = counts}, "alltoall");
      check_same(world, {.kind = OpKind::kAlltoall, .dtype = DType::kInt32, .counts = counts}, "alltoall");
    }
  }
}

TEST("staged: adasum combines each tensor as a whole, also one larger than the pool") {
  const FakeCuda cuda;
  for (const int size : {2, 3, 4}) {
    StagedWorld world(cuda, {.size = size});
    for (const DType dtype : kFloats) {
      for (const bool in_place : {false, true}) {
        const Work work{.adasum = true,
                        .dtype = dtype,
                        .prescale = 0.5,
                        .in_place = in_place,
                        .tensors = {3, 0, 9 * chunk_of(dtype) + 1, chunk_of(dtype)}};
        check_same(world, work, "adasum");
      }
      check_same(world, {.adasum = true, .dtype = dtype, .tensors = {0}}, "adasum of nothing");
    }
  }
  CHECK_EQ(std::string(cuda.wrong_uses()), "");
}

TEST("staged: between hosts, deterministic, and with ranks that share a device") {
  const FakeCuda cuda;
  for (const Wire wire : {Wire::kHosts, Wire::kTinySockets}) {
    StagedWorld world(cuda, {.size = 4, .wire = wire, .deterministic = true, .num_devices = 1});
    for (const DType dtype : {DType::kFloat16, DType::kFloat32}) {
      const Work work{.dtype = dtype, .postscale = 0.25, .tensors = {100, 6 * chunk_of(dtype) + 11}};
      CHECK(world.execute(work, 7) == host_results(4, work, 7, wire, true));
    }
  }
}

TEST("staged: pinned memory stays within its bound, and everything ends with the backend") {
  const FakeCuda cuda;
  const int64_t streams = cuda.alive("streams");
  {
    StagedWorld world(cuda, {.size = 2});
    check_same(world, {.tensors = {50'000}}, "sum");
    CHECK_EQ(cuda.alive("pinned bytes"), 2 * 4096);
  }
  CHECK_EQ(cuda.alive("pinned bytes"), 0);
  CHECK_EQ(cuda.alive("streams"), streams);
  CHECK_EQ(cuda.alive("events"), 0);
  CHECK_EQ(cuda.alive("contexts"), 0);
  CHECK_EQ(cuda.alive("allocations"), 0);
  CHECK_EQ(std::string(cuda.wrong_uses()), "");
}

}  // namespace
}  // namespace hvd::testing
