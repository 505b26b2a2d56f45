// The GPUs that operations of this rank have named, and memory on them.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "device/gpu.h"
#include "engine/submission/operation.h"

namespace hvd {

// A GPU with a stream of the engine's own, in whose order memory comes and goes.
class EngineDevice {
 public:
  explicit EngineDevice(std::shared_ptr<device::Gpu> gpu);
  EngineDevice(const EngineDevice&) = delete;
  EngineDevice& operator=(const EngineDevice&) = delete;
  ~EngineDevice();

  [[nodiscard]] const std::shared_ptr<device::Gpu>& gpu() const { return gpu_; }
  [[nodiscard]] device::Stream stream() const { return stream_; }
  // Behind all that the engine has asked for.
  [[nodiscard]] device::SharedEvent record() const { return gpu_->record(stream_); }
  // Before memory that others work with is given back.
  void await(const std::vector<device::SharedEvent>& events) const;

 private:
  std::shared_ptr<device::Gpu> gpu_;
  device::Stream stream_;
};

// An array that is valid behind what `device->record()` gives next. It keeps the stream that it is given back in.
[[nodiscard]] OwnedArray make_device_array(const std::shared_ptr<EngineDevice>& device, DType dtype, Shape shape);

// A copy into a buffer on the same GPU, in the order of the buffer's stream. Throws Error (kUsage) if they do not fit.
void copy_to(const OwnedArray& array, const Buffer& buffer);

// Thread-safe. Loads the driver when the first device is asked for.
class Devices {
 public:
  explicit Devices(std::vector<std::string> driver_candidates) : candidates_(std::move(driver_candidates)) {}

  // Throws Error (kUsage) if there is no driver, or no such device.
  [[nodiscard]] std::shared_ptr<EngineDevice> open(int index);
  // One that was opened, or nullptr.
  [[nodiscard]] std::shared_ptr<EngineDevice> find(int index) const;
  // That was asked for last; kCpuDevice if none was.
  [[nodiscard]] int last_used() const;

 private:
  const std::vector<std::string> candidates_;
  mutable std::mutex mutex_;
  std::shared_ptr<const device::Driver> driver_;
  std::map<int, std::shared_ptr<EngineDevice>> opened_;
  int last_used_ = kCpuDevice;
};

}  // namespace hvd
