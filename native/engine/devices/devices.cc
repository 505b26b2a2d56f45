#include "engine/devices/devices.h"

#include <algorithm>

namespace hvd {

EngineDevice::EngineDevice(std::shared_ptr<device::Gpu> gpu)
    : gpu_(std::move(gpu)), stream_(gpu_->make_stream(false)) {}

EngineDevice::~EngineDevice() { gpu_->destroy_stream(stream_); }

void EngineDevice::await(const std::vector<device::SharedEvent>& events) const {
  for (const device::SharedEvent& event : events) event->hold(stream_, *gpu_);
}

OwnedArray make_device_array(const std::shared_ptr<EngineDevice>& device, DType dtype, Shape shape) {
  OwnedArray array{.dtype = dtype, .shape = std::move(shape), .gpu = device->gpu(), .stream = device->stream()};
  auto memory = device->gpu()->allocate(std::max<size_t>(array.bytes(), 1), device->stream());
  std::byte* const address = memory.get();
  // The memory goes before the stream does.
  array.data = std::shared_ptr<std::byte[]>(address, [memory = std::move(memory), owner = device](std::byte*) mutable {
    memory.reset();
    owner.reset();
  });
  return array;
}

void copy_to(const OwnedArray& array, const Buffer& buffer) {
  if (array.gpu == nullptr || array.device() != buffer.device || array.bytes() != buffer.bytes()) {
    const auto place = [](int device) {
      return device < 0 ? std::string("the CPU") : "cuda:" + std::to_string(device);
    };
    throw Error(ErrorKind::kUsage, "a result of " + std::to_string(array.bytes()) + " bytes on " +
                                       place(array.device()) + " cannot be copied into " +
                                       std::to_string(buffer.bytes()) + " bytes on " + place(buffer.device) +
                                       ": both must be on one GPU, and of one length");
  }
  auto* const stream = static_cast<device::Stream>(buffer.stream);
  for (const device::SharedEvent& event : array.written) event->hold(stream, *array.gpu);
  array.gpu->copy(buffer.data, array.data.get(), buffer.bytes(), stream);
  array.gpu->record(stream)->hold(array.stream, *array.gpu);
}

std::shared_ptr<EngineDevice> Devices::open(int index) {
  const std::lock_guard lock(mutex_);
  if (driver_ == nullptr) driver_ = device::Driver::load(candidates_);
  std::shared_ptr<EngineDevice>& opened = opened_[index];
  if (opened == nullptr) {
    try {
      opened = std::make_shared<EngineDevice>(device::Gpu::open(driver_, index));
    } catch (...) {
      opened_.erase(index);
      throw;
    }
  }
  last_used_ = index;
  return opened;
}

std::shared_ptr<EngineDevice> Devices::find(int index) const {
  const std::lock_guard lock(mutex_);
  const auto found = opened_.find(index);
  return found == opened_.end() ? nullptr : found->second;
}

int Devices::last_used() const {
  const std::lock_guard lock(mutex_);
  return last_used_;
}

}  // namespace hvd
