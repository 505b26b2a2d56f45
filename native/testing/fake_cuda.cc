#include "testing/fake_cuda.h"

#include <dlfcn.h>

#include "testing/check.h"

namespace hvd::testing {
std::string fake_gpu_library(const std::string& name) { return std::string(HVD_FAKE_GPU) + "/" + name; }

FakeCuda::FakeCuda() {
  const std::string path = fake_gpu_library("libfake_cuda.so");
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw Fatal(dlerror());
#define HVD_FIND(type, name, parameters) find_control(library, "fake_cuda_" #name, name);
  FAKE_CUDA_CONTROLS(HVD_FIND)
#undef HVD_FIND
  reset();
  driver_ = device::Driver::load({path});
}

FakeCuda::~FakeCuda() { reset(); }

DeviceBytes::DeviceBytes(const FakeCuda& cuda, const std::shared_ptr<device::Gpu>& gpu,
                         const std::vector<std::byte>& values)
    : cuda_(&cuda), memory_(gpu->allocate(values.size(), nullptr)), size_(values.size()) {
  if (values.empty()) return;
  const device::Gpu::Current current(*gpu);
  REQUIRE(cuda.synchronize(nullptr) == device::kSuccess);  // it is memory from there on
  REQUIRE(cuda.write(reinterpret_cast<uint64_t>(memory_.get()), values.data(), values.size()) == device::kSuccess);
}

std::vector<std::byte> DeviceBytes::values() const {
  std::vector<std::byte> copy(size_);
  if (size_ > 0) {
    REQUIRE(cuda_->read(reinterpret_cast<uint64_t>(memory_.get()), copy.data(), size_) == device::kSuccess);
  }
  return copy;
}

}  // namespace hvd::testing
