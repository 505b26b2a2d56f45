#include <dlfcn.h>

#include <atomic>
#include <numeric>

#include "base/error.h"
#include "testing/check.h"
#include "testing/fake_cuda.h"

namespace hvd::testing {
namespace {

using device::Driver;
using device::Gpu;

template <class Body>
std::string error_of(ErrorKind kind, Body body) {
  try {
    body();
  } catch (const Error& error) {
    CHECK(error.kind() == kind);
    return error.what();
  }
  return "nothing was thrown";
}

std::vector<std::byte> bytes(size_t count) {
  std::vector<std::byte> all(count);
  for (size_t i = 0; i < count; ++i) all[i] = static_cast<std::byte>(i * 7 + 1);
  return all;
}

TEST("device: a driver that is not there is an error that lists what was tried") {
  const std::string text =
      error_of(ErrorKind::kUsage, [] { static_cast<void>(Driver::load({"/no/libcuda.so.1", "libno_cuda.so"})); });
  CHECK(contains(text, "there is no usable GPU driver on this host. Tried:"));
  CHECK(contains(text, "\n  /no/libcuda.so.1: "));
  CHECK(contains(text, "\n  libno_cuda.so: "));
  CHECK(contains(error_of(ErrorKind::kUsage, [] { static_cast<void>(Driver::load({})); }), "Tried: nothing"));
}

TEST("device: a driver that lacks a call is an error that names the call, and the next candidate is taken") {
  const FakeCuda cuda;
  const std::string old = fake_gpu_library("libfake_cuda_old.so");
  const std::string text = error_of(ErrorKind::kUsage, [&] { static_cast<void>(Driver::load({old})); });
  CHECK(contains(text, old + ": it lacks cuDeviceGetUuid_v2"));
  const auto driver = Driver::load({"libno_cuda.so", fake_gpu_library("libfake_cuda.so")});
  CHECK(driver->path() == fake_gpu_library("libfake_cuda.so"));
  CHECK_EQ(driver->version(), 13010);
}

TEST("device: a driver that does not start is an error that says why") {
  FakeCuda cuda;
  cuda.forget_driver();
  CHECK(cuda.configure("fail:cuInit:100:1"));
  const std::string path = fake_gpu_library("libfake_cuda.so");
  const std::string text = error_of(ErrorKind::kUsage, [&] { static_cast<void>(Driver::load({path})); });
  CHECK(contains(text, path + " does not start: error 100 (CUDA_ERROR_NO_DEVICE): no CUDA-capable device is detected"));
  CHECK(Driver::load({path}) != nullptr);
}

TEST("device: errors have the driver's words") {
  const FakeCuda cuda;
  const auto& check = [&](int code) { cuda.driver()->check(code, "cuInit", "rank 3"); };
  CHECK_EQ(error_of(ErrorKind::kInternal, [&] { check(100); }),
           "cuInit failed for rank 3: error 100 (CUDA_ERROR_NO_DEVICE): no CUDA-capable device is detected");
  CHECK_EQ(error_of(ErrorKind::kInternal, [&] { check(12345); }), "cuInit failed for rank 3: error 12345");
}

TEST("device: engines share a driver and its GPUs, and only what is opened gets a context") {
  const FakeCuda cuda;
  CHECK(Driver::load({fake_gpu_library("libfake_cuda.so")}) == cuda.driver());
  CHECK_EQ(cuda.driver()->device_count(), 4);
  {
    const auto gpu = cuda.gpu(2);
    CHECK(cuda.gpu(2) == gpu);
    CHECK_EQ(gpu->where(), "cuda:2");
    CHECK_EQ(gpu->uuid().size(), size_t{32});
    CHECK(gpu->uuid() != cuda.gpu(1)->uuid());
    CHECK(!gpu->name().empty());
    CHECK_EQ(cuda.contexts_made(0), 0);
    CHECK_EQ(cuda.contexts_made(2), 1);
  }
  CHECK_EQ(cuda.alive("contexts"), 0);
  const std::string text = error_of(ErrorKind::kUsage, [&] { static_cast<void>(cuda.gpu(4)); });
  CHECK(contains(text, "there is no cuda:4: this process sees 4 GPUs"));
  CHECK_EQ(std::string(cuda.wrong_uses()), "");
}

TEST("device: events order streams, also those of other devices, and are used again") {
  const FakeCuda cuda;
  const auto gpu = cuda.gpu(0);
  const auto other = cuda.gpu(1);
  const device::Stream first = gpu->make_stream(true);
  CHECK_EQ(cuda.stream_flags(first), 1);
  CHECK(cuda.stream_priority(first) < 0);
  cuda.hold_stream(first);
  std::atomic<int> order{0};
  gpu->call_behind(first, [&] { order = 1; });
  {
    const device::SharedEvent event = gpu->record(first);
    CHECK(!event->reached());
    event->hold(nullptr, *other);  // the default stream of cuda:1
  }
  other->call_behind(nullptr, [&] { order = order == 1 ? 2 : -1; });
  CHECK_EQ(order.load(), 0);
  cuda.release_stream(first);
  {
    const Gpu::Current current(*other);
    CHECK_EQ(cuda.synchronize(nullptr), 0);
  }
  CHECK_EQ(order.load(), 2);
  for (int i = 0; i < 100; ++i) CHECK(gpu->record(first) != nullptr);
  CHECK_EQ(cuda.alive("events"), 1);
  gpu->destroy_stream(first);
  CHECK_EQ(std::string(cuda.wrong_uses()), "");
}

TEST("device: memory comes, moves and goes in the order of a stream") {
  const FakeCuda cuda;
  CHECK(cuda.configure("strict"));
  const auto gpu = cuda.gpu(1);
  const device::Stream stream = gpu->make_stream(false);
  const auto pool = std::make_shared<device::PinnedPool>(gpu, 4096, 2);
  {
    const auto from = pool->try_take();
    const auto to = pool->try_take();
    const auto values = bytes(4096);
    std::copy(values.begin(), values.end(), from.get());
    const auto memory = gpu->allocate(4096, stream);
    const auto copy = gpu->allocate(4096, stream);
    gpu->copy_from_host(memory.get(), from.get(), 4096, stream);
    gpu->copy(copy.get(), memory.get(), 4000, stream);
    gpu->fill(copy.get() + 4000, 9, 96, stream);
    gpu->copy_to_host(to.get(), copy.get(), 4096, stream);
    gpu->copy_to_host(nullptr, nullptr, 0, stream);
    CHECK(gpu->allocate(0, stream) == nullptr);
    CHECK_EQ(cuda.synchronize(stream), 0);
    CHECK(std::equal(values.begin(), values.begin() + 4000, to.get()));
    CHECK(to[4000] == std::byte{9} && to[4095] == std::byte{9});
  }
  CHECK_EQ(cuda.synchronize(stream), 0);
  CHECK_EQ(cuda.alive("allocations"), 0);
  gpu->destroy_stream(stream);
  CHECK_EQ(std::string(cuda.wrong_uses()), "");
}

TEST("device: pinned memory is pooled and bounded, but for who may go beyond") {
  const FakeCuda cuda;
  auto gpu = cuda.gpu(0);
  {
    const auto pool = std::make_shared<device::PinnedPool>(gpu, 1 << 16, 2);
    auto first = pool->try_take();
    const auto second = pool->try_take();
    CHECK(first != nullptr && second != nullptr);
    CHECK(pool->try_take() == nullptr);
    const std::byte* place = first.get();
    first.reset();
    CHECK(pool->try_take().get() == place);
    const auto again = pool->try_take();
    const auto third = pool->try_take(true);
    CHECK(third != nullptr);
    CHECK_EQ(cuda.alive("pinned blocks"), 3);
  }
  CHECK_EQ(cuda.alive("pinned blocks"), 0);
  CHECK(cuda.configure("fail:cuMemHostAlloc:2:1"));
  const auto pool = std::make_shared<device::PinnedPool>(gpu, 1 << 16, 2);
  const std::string text = error_of(ErrorKind::kInternal, [&] { static_cast<void>(pool->try_take()); });
  CHECK(contains(text, "cuMemHostAlloc failed for 65536 bytes for cuda:0: error 2 (CUDA_ERROR_OUT_OF_MEMORY)"));
  CHECK(pool->try_take() != nullptr);
}

TEST("device: a device that has failed says so, and nothing waits for it") {
  const FakeCuda cuda;
  {
    const auto gpu = cuda.gpu(3);
    const device::Stream stream = gpu->make_stream(true);
    const device::SharedEvent event = gpu->record(stream);
    cuda.fail_device(3, 719);
    const std::string text = error_of(ErrorKind::kInternal, [&] { static_cast<void>(event->reached()); });
    CHECK(contains(text, "cuda:3: error 719 (CUDA_ERROR_LAUNCH_FAILED)"));
    CHECK(contains(error_of(ErrorKind::kInternal, [&] { gpu->call_behind(stream, [] {}); }), "cuda:3"));
    gpu->destroy_stream(stream);
  }
  CHECK_EQ(cuda.alive("streams"), 0);
}

}  // namespace
}  // namespace hvd::testing
