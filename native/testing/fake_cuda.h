// The fake CUDA driver of tests/fakes/gpu, and memory of its devices, which faults if the host touches it.
#pragma once

#include <dlfcn.h>

#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "cuda_control.h"
#include "device/gpu.h"
#include "testing/check.h"

namespace hvd::testing {

// Where the fakes were built.
[[nodiscard]] std::string fake_gpu_library(const std::string& name);

// A function of such a library, opened; throws Fatal if it has none of this name.
template <class Function>
void find_control(void* library, const char* name, Function*& function) {
  void* found = dlsym(library, name);
  if (found == nullptr) throw Fatal(std::string("a fake library lacks ") + name);
  function = reinterpret_cast<Function*>(found);
}

// The driver, and what a test asks of it. Undoes what other tests asked for, at its beginning and at its end.
class FakeCuda {
 public:
  FakeCuda();
  FakeCuda(const FakeCuda&) = delete;
  FakeCuda& operator=(const FakeCuda&) = delete;
  ~FakeCuda();

  [[nodiscard]] const std::shared_ptr<const device::Driver>& driver() const { return driver_; }
  // So that the next one to load it starts it.
  void forget_driver() { driver_ = nullptr; }
  [[nodiscard]] std::shared_ptr<device::Gpu> gpu(int index) const { return device::Gpu::open(driver_, index); }

#define HVD_DECLARE(type, name, parameters) std::add_pointer_t<type parameters> name = nullptr;
  FAKE_CUDA_CONTROLS(HVD_DECLARE)
#undef HVD_DECLARE

 private:
  std::shared_ptr<const device::Driver> driver_;
};

// Bytes on a device.
class DeviceBytes {
 public:
  DeviceBytes(const FakeCuda& cuda, const std::shared_ptr<device::Gpu>& gpu, const std::vector<std::byte>& values);

  [[nodiscard]] std::byte* data() const { return memory_.get(); }
  [[nodiscard]] std::vector<std::byte> values() const;

 private:
  const FakeCuda* cuda_;
  std::shared_ptr<std::byte[]> memory_;
  size_t size_;
};

}  // namespace hvd::testing
