// The staged path's order, memory and ends.
#include <thread>

#include "base/error.h"
#include "testing/check.h"
#include "tests/test_staged_world.h"

namespace hvd::testing {
namespace {

using Executions = StagedWorld::Executions;

// Several chunks, more than a pool holds.
const Work kLongSum{.tensors = {5000}};

std::vector<Executions> start_everywhere(StagedWorld& world, const Work& work, const StagedWorld::Started& arrays) {
  std::vector<Executions> all(static_cast<size_t>(world.size()));
  for (int rank = 0; rank < world.size(); ++rank) {
    all[static_cast<size_t>(rank)].push_back(world.start(work, arrays, rank));
  }
  return all;
}

// Turns until the condition holds; fails the case if nothing moves for 20 s.
void run_until(StagedWorld& world, std::vector<Executions>& all, const std::function<bool()>& condition) {
  while (!condition()) {
    const uint64_t seen = world.rings().count();
    if (!world.take_turns(all) && !condition()) REQUIRE(world.rings().wait_past(seen));
  }
}

TEST("staged life: nothing is read before the caller's stream has made it") {
  const FakeCuda cuda;
  StagedWorld world(cuda, {.size = 2});
  StagedWorld::Started arrays = world.prepare(kLongSum, 1);
  // What the stream will write are the values of another seed.
  const std::vector<Values> late = random_inputs(kLongSum, 1, 2);
  const device::Stream stream = world.gpu(1)->make_stream(false);
  CHECK(cuda.hold_stream(stream) == 1);
  world.gpu(1)->copy_from_host(arrays.inputs[1][0].data(), late[0].data(), late[0].size(), stream);
  arrays.ready = {nullptr, world.gpu(1)->record(stream)};
  std::vector<Executions> all = start_everywhere(world, kLongSum, arrays);
  run_until(world, all, [&] { return all[0][0]->waits_for(1); });
  CHECK(!all[1][0]->handed_over() && !all[0][0]->handed_over());
  CHECK(!all[1][0]->waits_for(0));  // it waits for its device
  cuda.release_stream(stream);
  REQUIRE(world.run(all));

  const auto given = [&](int rank) { return rank == 0 ? random_inputs(kLongSum, 0, 1)[0] : late[0]; };
  const auto sum_at = [&](size_t at) {
    std::array<float, 2> terms{};
    for (int rank = 0; rank < 2; ++rank) {
      std::memcpy(&terms[static_cast<size_t>(rank)], given(rank).data() + at * sizeof(float), sizeof(float));
    }
    return terms[0] + terms[1];
  };
  for (const size_t at : {size_t{0}, size_t{300}, size_t{4999}}) {
    for (const auto& values : arrays.results()) {
      float found = 0;
      std::memcpy(&found, values[0].data() + at * sizeof(float), sizeof(float));
      CHECK_EQ(found, sum_at(at));
    }
  }
  world.gpu(1)->destroy_stream(stream);
}

TEST("staged life: nothing is written before the caller's stream has come so far, also where nothing is read") {
  const FakeCuda cuda;
  const Work work{.kind = OpKind::kBroadcast, .dtype = DType::kUInt8, .root = 0, .tensors = {3000}};
  StagedWorld world(cuda, {.size = 2});
  StagedWorld::Started arrays = world.prepare(work, 1);
  const std::vector<Values> before = {arrays.outputs[1][0].values()};
  const device::Stream stream = world.gpu(1)->make_stream(false);
  cuda.hold_stream(stream);
  world.gpu(1)->call_behind(stream, [] {});
  arrays.ready = {nullptr, world.gpu(1)->record(stream)};
  std::vector<Executions> all = start_everywhere(world, work, arrays);
  run_until(world, all, [&] { return all[0][0]->done() && all[1][0]->handed_over(); });
  CHECK(!all[1][0]->done());  // the copies back wait on the device, not here
  CHECK(arrays.outputs[1][0].values() == before[0]);
  cuda.release_stream(stream);
  REQUIRE(world.run(all));
  CHECK(arrays.results() == host_results(2, work, 1));
  world.gpu(1)->destroy_stream(stream);
}

TEST("staged life: callers go on once it is handed over, and their streams wait for the rest") {
  const FakeCuda cuda;
  CHECK(cuda.configure("delay_us:300"));
  StagedWorld world(cuda, {.size = 2});
  const StagedWorld::Started arrays = world.prepare(kLongSum, 3);
  std::vector<Executions> all = start_everywhere(world, kLongSum, arrays);
  std::vector<Values> seen(2, Values(5000 * sizeof(float)));
  std::vector<device::Stream> streams(2, nullptr);
  while (streams[0] == nullptr || streams[1] == nullptr) {
    const uint64_t rings = world.rings().count();
    if (!world.take_turns(all)) REQUIRE(world.rings().wait_past(rings));
    for (const size_t rank : {size_t{0}, size_t{1}}) {
      const Execution& execution = *all[rank][0];
      CHECK_EQ(execution.handed_over(), execution.finished() != nullptr);
      if (!execution.handed_over() || streams[rank] != nullptr) continue;
      const auto& gpu = world.gpu(static_cast<int>(rank));
      streams[rank] = gpu->make_stream(false);
      execution.finished()->hold(streams[rank]);
      gpu->copy_to_host(seen[rank].data(), arrays.outputs[rank][0].data(), seen[rank].size(), streams[rank]);
    }
  }
  const auto expected = host_results(2, kLongSum, 3);
  for (const size_t rank : {size_t{0}, size_t{1}}) {
    CHECK_EQ(cuda.synchronize(streams[rank]), 0);
    CHECK(seen[rank] == expected[rank][0]);
    world.gpu(static_cast<int>(rank))->destroy_stream(streams[rank]);
  }
  REQUIRE(world.run(all));
}

// Each rank starts the two sets in another order, and either would take all of the pool.
TEST("staged life: batches of several sets do not wait for each other's memory") {
  const FakeCuda cuda;
  for (const size_t blocks : {1, 2, 4}) {
    StagedWorld world(cuda, {.size = 4, .staged = {.chunk_bytes = 1024, .max_pinned_bytes = blocks * 1024}});
    constexpr uint32_t kSets = 3;
    std::vector<StagedWorld::Started> arrays;
    for (uint32_t i = 0; i < 2 * kSets; ++i) arrays.push_back(world.prepare(kLongSum, i));
    std::vector<Executions> all(4);
    for (int rank = 0; rank < 4; ++rank) {
      for (uint32_t i = 0; i < 2 * kSets; ++i) {
        const uint32_t set = (i + static_cast<uint32_t>(rank)) % kSets;
        const uint32_t which = set + (i < kSets ? 0 : kSets);  // within a set alike everywhere
        all[static_cast<size_t>(rank)].push_back(world.start(kLongSum, arrays[which], rank, set));
      }
    }
    REQUIRE(world.run(all));
    for (uint32_t i = 0; i < 2 * kSets; ++i) CHECK(arrays[i].results() == host_results(4, kLongSum, i));
    CHECK(cuda.alive("pinned bytes") <= static_cast<int64_t>(4 * 1024 * (blocks + kSets)));
  }
  CHECK_EQ(std::string(cuda.wrong_uses()), "");
}

TEST("staged life: batches of one set take memory in the order in which they were made") {
  const FakeCuda cuda;
  StagedWorld world(cuda, {.size = 2, .staged = {.chunk_bytes = 1024, .max_pinned_bytes = 1024}});
  const std::vector<StagedWorld::Started> arrays{world.prepare(kLongSum, 0), world.prepare(kLongSum, 1)};
  std::vector<Executions> all(2);
  for (const auto& started : arrays) {
    for (const int rank : {0, 1}) all[static_cast<size_t>(rank)].push_back(world.start(kLongSum, started, rank));
  }
  all[0][0]->advance();
  all[1][1]->advance();  // as if it had the higher priority, or its tensors were ready before
  REQUIRE(world.run(all));
  for (size_t i = 0; i < arrays.size(); ++i) CHECK(arrays[i].results() == host_results(2, kLongSum, i));
}

TEST("staged life: a sum, an Adasum and a gather of one set share a pool of one block") {
  const FakeCuda cuda;
  const Work adasum{.adasum = true, .tensors = {700, 2000}};
  const Work gather{.kind = OpKind::kAllgather, .dtype = DType::kUInt8, .counts = {{3000, 5000, 1}}};
  StagedWorld world(cuda, {.size = 3, .staged = {.chunk_bytes = 1024, .max_pinned_bytes = 1024}});
  const std::vector<Work> works{kLongSum, adasum, gather, adasum, kLongSum};
  std::vector<StagedWorld::Started> arrays;
  for (size_t i = 0; i < works.size(); ++i) arrays.push_back(world.prepare(works[i], i));
  std::vector<Executions> all(3);
  for (int rank = 0; rank < 3; ++rank) {
    for (size_t i = 0; i < works.size(); ++i) {
      all[static_cast<size_t>(rank)].push_back(world.start(works[i], arrays[i], rank));
    }
  }
  REQUIRE(world.run(all));
  for (size_t i = 0; i < works.size(); ++i) CHECK(arrays[i].results() == host_results(3, works[i], i));
  CHECK_EQ(cuda.alive("pinned bytes"), 3 * 1024);
}

TEST("staged life: what is dropped on its way leaves no memory behind and no copy in freed memory") {
  const FakeCuda cuda;
  CHECK(cuda.configure("delay_us:100"));
  for (int turns = 0; turns < 24; turns += kSanitized ? 5 : 1) {
    StagedWorld world(cuda, {.size = 2});
    for (const Work& work : {kLongSum, Work{.adasum = true, .tensors = {5000}}}) {
      const StagedWorld::Started arrays = world.prepare(work, 1);
      std::vector<Executions> all = start_everywhere(world, work, arrays);
      for (int i = 0; i < turns; ++i) {
        const uint64_t rings = world.rings().count();
        if (!world.take_turns(all) && !BackendWorld::all_done(all)) REQUIRE(world.rings().wait_past(rings));
      }
    }
  }
  CHECK_EQ(cuda.alive("pinned blocks"), 0);
  CHECK_EQ(cuda.alive("streams"), 0);
  CHECK_EQ(cuda.alive("allocations"), 0);
  CHECK_EQ(std::string(cuda.wrong_uses()), "");
}

TEST("staged life: a device that hangs delays the end by 2 s at most, and keeps the memory it may still use") {
  const FakeCuda cuda;
  {
    StagedWorld world(cuda, {.size = 2});
    const StagedWorld::Started arrays = world.prepare(kLongSum, 1);
    std::vector<Executions> all = start_everywhere(world, kLongSum, arrays);
    cuda.hold_device(1);
    run_until(world, all, [&] { return all[0][0]->waits_for(1); });
    const auto start = std::chrono::steady_clock::now();
    all.clear();
    world.end_backend(1);
    const auto taken = std::chrono::steady_clock::now() - start;
    CHECK(taken < std::chrono::milliseconds(3500));
    world.end_backend(0);
    CHECK(cuda.alive("pinned blocks") > 0);
    cuda.release_device(1);
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (cuda.alive("pinned blocks") > 0 && std::chrono::steady_clock::now() < until) {
      static_cast<void>(cuda.gpu(1));  // comes by
      std::this_thread::yield();
    }
    CHECK_EQ(cuda.alive("pinned blocks"), 0);
  }
  CHECK_EQ(std::string(cuda.wrong_uses()), "");
}

TEST("staged life: a tensor that is not ready does not delay the end of a batch that fails") {
  const FakeCuda cuda;
  StagedWorld world(cuda, {.size = 2});
  StagedWorld::Started arrays = world.prepare(kLongSum, 1);
  const device::Stream stream = world.gpu(1)->make_stream(false);
  cuda.hold_stream(stream);
  world.gpu(1)->call_behind(stream, [] {});
  arrays.ready = {nullptr, world.gpu(1)->record(stream)};
  std::vector<Executions> all = start_everywhere(world, kLongSum, arrays);
  run_until(world, all, [&] { return all[0][0]->waits_for(1); });
  const auto start = std::chrono::steady_clock::now();
  all.clear();
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(1));
  cuda.release_stream(stream);
  world.end_backend(1);  // waits for its copies
  CHECK_EQ(std::string(cuda.wrong_uses()), "");
  world.gpu(1)->destroy_stream(stream);
}

TEST("staged life: a device that fails is an error that names the rank, the tensor and the device") {
  const FakeCuda cuda;
  StagedWorld world(cuda, {.size = 2});
  const StagedWorld::Started arrays = world.prepare(kLongSum, 1);
  std::vector<Executions> all = start_everywhere(world, kLongSum, arrays);
  REQUIRE(world.run(all));
  const StagedWorld::Started more = world.prepare(kLongSum, 2);
  all = start_everywhere(world, kLongSum, more);
  cuda.fail_device(1, 700);
  std::string text;
  try {
    world.run(all);
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::kInternal);
    text = error.what();
  }
  CHECK(contains(text, "rank 1 could not take the tensor of the test through host memory: cu"));
  CHECK(contains(text, "cuda:1: error 700 (CUDA_ERROR_ILLEGAL_ADDRESS)"));
  const auto start = std::chrono::steady_clock::now();
  all.clear();
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::milliseconds(2500));
}

TEST("staged life: pinned memory that cannot be had is an error that says how much") {
  const FakeCuda cuda;
  StagedWorld world(cuda, {.size = 2});
  const StagedWorld::Started arrays = world.prepare(kLongSum, 1);
  CHECK(cuda.configure("fail:cuMemHostAlloc:2:1"));
  std::vector<Executions> all = start_everywhere(world, kLongSum, arrays);
  std::string text;
  try {
    world.run(all);
  } catch (const Error& error) {
    text = error.what();
  }
  CHECK(contains(text, "cuMemHostAlloc failed for 1024 bytes for cuda:0: error 2 (CUDA_ERROR_OUT_OF_MEMORY)"));
}

// Backends of ranks in threads of their own, as engines have them.
TEST("staged life: ranks in threads, many batches in flight") {
  const FakeCuda cuda;
  constexpr int kRanks = 3;
  const size_t num_batches = kSanitized ? 6 : 30;
  StagedWorld world(cuda, {.size = kRanks, .num_devices = 2});
  std::vector<StagedWorld::Started> arrays;
  for (size_t i = 0; i < num_batches; ++i) arrays.push_back(world.prepare(kLongSum, i));
  std::atomic<bool> stuck{false};
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kRanks; ++rank) {
    ranks.emplace_back([&, rank] {
      Executions mine;
      for (const auto& started : arrays) mine.push_back(world.start(kLongSum, started, rank));
      const auto done = [](const auto& execution) { return execution->done(); };
      const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
      while (!std::all_of(mine.begin(), mine.end(), done) && !stuck) {
        if (!world.hosts().take_turn(static_cast<size_t>(rank), mine)) std::this_thread::yield();
        if (std::chrono::steady_clock::now() > until) stuck = true;
      }
    });
  }
  for (std::thread& thread : ranks) thread.join();
  CHECK(!stuck);
  for (size_t i = 0; i < num_batches; ++i) CHECK(arrays[i].results() == host_results(kRanks, kLongSum, i));
  CHECK_EQ(std::string(cuda.wrong_uses()), "");
}

}  // namespace
}  // namespace hvd::testing
