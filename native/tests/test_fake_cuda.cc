// The fake CUDA driver itself: what it lets pass, tests of real code cannot see.
#include <unistd.h>

#include <array>
#include <atomic>

#include "testing/check.h"
#include "testing/fake_cuda.h"

namespace hvd::testing {
namespace {

using device::Gpu;

constexpr int kInvalidValue = 1;
constexpr int kInvalidContext = 201;
constexpr int kInvalidHandle = 400;
constexpr int kIllegalAddress = 700;
constexpr int kNotPermitted = 800;

// Whether this process may read there.
bool is_readable(const std::byte* memory) {
  std::array<int, 2> ends{};
  REQUIRE(pipe(ends.data()) == 0);
  const bool readable = write(ends[1], memory, 1) == 1;
  close(ends[0]);
  close(ends[1]);
  return readable;
}

TEST("fake cuda: what does not wait comes too early, and what waits does not") {
  const FakeCuda cuda;
  const auto gpu = cuda.gpu(0);
  const device::Stream first = gpu->make_stream(true);
  const device::Stream second = gpu->make_stream(true);
  CHECK_EQ(cuda.hold_stream(first), 1);
  std::atomic<int> value{0};
  gpu->call_behind(first, [&] { value = 1; });
  std::atomic<int> early{-1};
  gpu->call_behind(second, [&] { early = value.load(); });
  CHECK_EQ(cuda.synchronize(second), 0);
  CHECK_EQ(early.load(), 0);
  gpu->record(first)->hold(second, *gpu);
  std::atomic<int> late{-1};
  gpu->call_behind(second, [&] { late = value.load(); });
  CHECK_EQ(cuda.release_stream(first), 1);
  CHECK_EQ(cuda.synchronize(second), 0);
  CHECK_EQ(late.load(), 1);
  gpu->destroy_stream(first);
  gpu->destroy_stream(second);
  CHECK_EQ(cuda.alive("streams"), 0);
}

TEST("fake cuda: streams that do not say otherwise wait for the default one") {
  const FakeCuda cuda;
  const auto gpu = cuda.gpu(1);
  const Gpu::Current current(*gpu);
  device::Stream blocking = nullptr;
  REQUIRE(cuda.driver()->functions().stream_create_with_priority(&blocking, 0, 0) == 0);
  std::atomic<int> order{0};
  cuda.hold_device(1);
  gpu->call_behind(nullptr, [&] { order = 1; });
  gpu->call_behind(blocking, [&] { order = order == 1 ? 2 : -1; });
  gpu->call_behind(nullptr, [&] { order = order == 2 ? 3 : -1; });
  cuda.release_device(1);
  CHECK_EQ(cuda.synchronize(nullptr), 0);
  CHECK_EQ(order.load(), 3);
  gpu->destroy_stream(blocking);
}

TEST("fake cuda: nobody but streams touches memory of a device, from its allocation to its end") {
  const FakeCuda cuda;
  const auto gpu = cuda.gpu(0);
  const device::Stream first = gpu->make_stream(true);
  const device::Stream second = gpu->make_stream(true);
  cuda.hold_stream(first);
  auto memory = gpu->allocate(100, first);
  CHECK(!is_readable(memory.get()));
  std::array<std::byte, 101> host{};
  CHECK_EQ(cuda.read(reinterpret_cast<uint64_t>(memory.get()), host.data(), 100), kIllegalAddress);  // not yet
  cuda.release_stream(first);
  CHECK_EQ(cuda.synchronize(first), 0);
  CHECK_EQ(cuda.read(reinterpret_cast<uint64_t>(memory.get()), host.data(), 100), 0);
  CHECK(host[0] != std::byte{0});  // as memory is that nobody has filled
  const auto& calls = cuda.driver()->functions();
  const auto address = reinterpret_cast<device::Pointer>(memory.get());
  {
    const Gpu::Current current(*gpu);
    CHECK_EQ(calls.memcpy_dtoh_async(host.data(), address, 101, second), kInvalidValue);
    cuda.hold_stream(second);
    CHECK_EQ(calls.memcpy_dtoh_async(host.data(), address, 100, second), 0);
    memory.reset();
    CHECK_EQ(cuda.synchronize(first), 0);
    CHECK_EQ(calls.memcpy_dtoh_async(host.data(), address, 100, second), kInvalidValue);
    cuda.release_stream(second);
    CHECK_EQ(cuda.synchronize(second), kIllegalAddress);  // for good
    CHECK_EQ(calls.event_create(nullptr, 0), kIllegalAddress);
  }
  CHECK(contains(cuda.wrong_uses(), "was not there when the stream came to it"));
  gpu->destroy_stream(first);
  gpu->destroy_stream(second);
}

TEST("fake cuda: calls without the right context are refused") {
  const FakeCuda cuda;
  const auto gpu = cuda.gpu(0);
  const auto other = cuda.gpu(1);
  const auto& calls = cuda.driver()->functions();
  device::RawEvent event = nullptr;
  device::Stream stream = nullptr;
  CHECK_EQ(calls.event_create(&event, 2), kInvalidContext);
  CHECK_EQ(calls.stream_create_with_priority(&stream, 1, 0), kInvalidContext);
  CHECK_EQ(calls.ctx_pop_current(nullptr), kInvalidContext);
  {
    const Gpu::Current current(*gpu);
    CHECK_EQ(calls.event_create(&event, 2), 0);
    CHECK_EQ(calls.stream_create_with_priority(&stream, 1, 0), 0);
  }
  const auto nothing = [](void*) {};
  {
    const Gpu::Current current(*other);
    CHECK_EQ(calls.launch_host_func(stream, nothing, nullptr), kInvalidHandle);
    CHECK_EQ(calls.event_record(event, nullptr), kInvalidHandle);
    CHECK_EQ(calls.stream_wait_event(stream, event, 0), 0);
  }
  const Gpu::Current current(*gpu);
  CHECK_EQ(calls.event_destroy(event), 0);
  CHECK_EQ(calls.event_query(event), kInvalidHandle);
  CHECK_EQ(calls.stream_destroy(stream), 0);
  CHECK_EQ(calls.launch_host_func(stream, nothing, nullptr), kInvalidHandle);
  CHECK(contains(cuda.wrong_uses(), "cuEventRecord was given an event and a stream of different devices"));
}

TEST("fake cuda: functions of the host may not call the driver") {
  const FakeCuda cuda;
  const auto gpu = cuda.gpu(0);
  std::atomic<int> result{-1};
  gpu->call_behind(nullptr, [&] {
    int count = 0;
    result = cuda.driver()->functions().device_get_count(&count);
  });
  const Gpu::Current current(*gpu);
  CHECK_EQ(cuda.synchronize(nullptr), 0);
  CHECK_EQ(result.load(), kNotPermitted);
  CHECK(contains(cuda.wrong_uses(), "cuDeviceGetCount was called by a function of the host"));
}

TEST("fake cuda: a strict driver copies from pinned memory only, and notices that it is freed too early") {
  const FakeCuda cuda;
  const auto gpu = cuda.gpu(0);
  const auto& calls = cuda.driver()->functions();
  const Gpu::Current current(*gpu);
  CHECK_EQ(cuda.configure("strict"), 1);
  std::array<std::byte, 64> device_memory{};
  std::array<std::byte, 64> unpinned{};
  const auto address = reinterpret_cast<device::Pointer>(device_memory.data());
  CHECK_EQ(calls.memcpy_htod_async(address, unpinned.data(), 64, nullptr), kInvalidValue);
  void* pinned = nullptr;
  REQUIRE(calls.mem_host_alloc(&pinned, 64, 0) == 0);
  cuda.hold_device(0);
  CHECK_EQ(calls.memcpy_htod_async(address, pinned, 64, nullptr), 0);
  CHECK(!contains(cuda.wrong_uses(), "was freed"));
  CHECK_EQ(calls.mem_free_host(pinned), 0);
  CHECK(contains(cuda.wrong_uses(), "pinned memory was freed while a copy used it"));
  cuda.release_device(0);
  CHECK_EQ(cuda.synchronize(nullptr), 0);
}

TEST("fake cuda: a call fails where a test wants it, once") {
  const FakeCuda cuda;
  const auto gpu = cuda.gpu(0);
  const Gpu::Current current(*gpu);
  const auto& calls = cuda.driver()->functions();
  CHECK_EQ(cuda.configure("fail:cuCtxGetStreamPriorityRange:2:2"), 1);
  CHECK_EQ(cuda.configure("nonsense:1"), 0);
  CHECK_EQ(calls.ctx_get_stream_priority_range(nullptr, nullptr), 0);
  CHECK_EQ(calls.ctx_get_stream_priority_range(nullptr, nullptr), 2);
  CHECK_EQ(calls.ctx_get_stream_priority_range(nullptr, nullptr), 0);
  CHECK_EQ(cuda.calls("cuCtxGetStreamPriorityRange"), 3);
}

}  // namespace
}  // namespace hvd::testing
