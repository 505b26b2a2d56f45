// Engines of ranks that are threads, with GPUs of the fake driver.
#pragma once

#include "testing/array.h"
#include "testing/check.h"
#include "testing/fake_cuda.h"
#include "testing/fake_nccl.h"
#include "testing/log.h"
#include "testing/world.h"

namespace hvd::testing {

// Which GPU a rank uses: its own, or all the first one, for which NCCL does not serve.
enum class Gpus : uint8_t { kOurs, kShared };

inline EngineOptions gpu_options(GpuOperations operations = GpuOperations::kAuto) {
  EngineOptions options;
  options.gpu = GpuOptions{.driver_candidates = {fake_gpu_library("libfake_cuda.so")},
                           .nccl_candidates = {fake_gpu_library("libfake_nccl.so")},
                           .operations = operations,
                           .staged = {.chunk_bytes = 4096, .max_pinned_bytes = 1 << 16}};
  options.log = [](LogLevel, const std::string&) {};
  return options;
}

// A tensor of a rank, on its device and in its stream.
class GpuTensor {
 public:
  GpuTensor(const FakeCuda& cuda, int device, const Array& values)
      : device_(device),
        shape_{values.count()},
        dtype_(values.dtype()),
        bytes_(cuda, cuda.gpu(device), values.bytes()) {}

  [[nodiscard]] Buffer view(const Shape& shape = {}) const {
    return {bytes_.data(), dtype_, shape.empty() ? shape_ : shape, device_, nullptr};
  }
  [[nodiscard]] double get(int64_t index) const { return element(dtype_, bytes_.values().data(), index); }

 private:
  int device_;
  Shape shape_;
  DType dtype_;
  DeviceBytes bytes_;
};

class GpuWorld {
 public:
  explicit GpuWorld(int size, Gpus gpus, const EngineOptions& options = gpu_options(), Wire wire = Wire::kMemory,
                    std::optional<int> victim = {}, const std::function<void(int, EngineOptions&)>& adapt = {})
      : gpus_(gpus), world_(size, options, wire, victim, adapt) {}

  FakeCuda& cuda() { return cuda_; }
  FakeNccl& nccl() { return nccl_; }
  World& ranks() { return world_; }
  Engine& engine(int rank) { return world_.engine(rank); }
  [[nodiscard]] int device_of(int rank) const { return gpus_ == Gpus::kOurs ? rank : 0; }
  [[nodiscard]] GpuTensor tensor(int rank, const Array& values) const { return {cuda_, device_of(rank), values}; }
  [[nodiscard]] GpuTensor tensor(int rank, DType dtype, int64_t count, double value) const {
    Array values(dtype, {count});
    for (int64_t i = 0; i < count; ++i) values.set(i, value);
    return tensor(rank, values);
  }

  // What an adapter does: waits, orders its stream behind the operation, and here for the stream, too.
  void wait(int rank, const std::shared_ptr<Operation>& operation) {
    if (!engine(rank).wait(*operation, std::chrono::seconds(30))) {
      throw Error(ErrorKind::kInternal, operation->spec.name + " did not end within 30 s");
    }
    if (operation->error()) throw Error(*operation->error());
    engine(rank).order(*operation, device_of(rank), nullptr);
    synchronize(rank);
  }
  void run_operation(int rank, const std::shared_ptr<Operation>& operation) {
    submit_to(engine(rank), operation, true);
    wait(rank, operation);
  }
  void synchronize(int rank) {
    const device::Gpu::Current current(*cuda_.gpu(device_of(rank)));
    CHECK_EQ(cuda_.synchronize(nullptr), device::kSuccess);
  }
  // Whether the device is soon done with the memory.
  static bool settles(const Operation& operation) {
    const TimePoint until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    const Operation nobodys;
    while (!operation.settled() && std::chrono::steady_clock::now() < until) {
      static_cast<void>(nobodys.wait_done(std::chrono::milliseconds(1)));
    }
    return operation.settled();
  }
  // A result of the engine, copied as an adapter does it.
  std::vector<double> result(int rank, const OwnedArray& array) {
    const int64_t count = num_elements(array.shape);
    const GpuTensor copy = tensor(rank, array.dtype, count, 0);
    copy_to(array, copy.view(array.shape));
    synchronize(rank);
    std::vector<double> values;
    for (int64_t i = 0; i < count; ++i) values.push_back(copy.get(i));
    return values;
  }
  // Closes all engines at the same time; what the fakes complain about, or nothing.
  std::string end() {
    world_.run([&](int rank) { world_.engine(rank).close("the test is over"); });
    return cuda_.wrong_uses();
  }

 private:
  FakeCuda cuda_;
  FakeNccl nccl_;
  Gpus gpus_;
  World world_;
};

}  // namespace hvd::testing
