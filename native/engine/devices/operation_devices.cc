#include "engine/devices/operation_devices.h"

#include <algorithm>

#include "engine/submission/check.h"

namespace hvd {
namespace {

void add_stream(void* stream, std::vector<void*>& streams) {
  if (std::find(streams.begin(), streams.end(), stream) == streams.end()) streams.push_back(stream);
}

}  // namespace

OperationDevices::OperationDevices(std::optional<std::vector<std::string>> driver_candidates,
                                   std::function<void()> find_libraries)
    : devices_(driver_candidates ? std::make_unique<Devices>(*std::move(driver_candidates)) : nullptr),
      find_libraries_(std::move(find_libraries)) {}

bool OperationDevices::knows(int index) const { return devices_ != nullptr && devices_->find(index) != nullptr; }

// A rank that joins names a device for what stands in for its tensors on GPUs. Scripts name one wherever they run, so
// what cannot be used is passed over; operations on GPUs, if there are any, say what this rank lacks.
int OperationDevices::device_to_join_with(int named) const {
  if (devices_ == nullptr) return kCpuDevice;
  if (named < 0) return devices_->last_used();
  try {
    static_cast<void>(devices_->open(named));
    return named;
  } catch (const Error&) {
    return devices_->last_used();
  }
}

void OperationDevices::find(Operation& operation) const {
  const bool joins = operation.spec.kind == OpKind::kJoin;
  operation.gpu.device = joins ? device_to_join_with(operation.request.device) : common_device(operation);
}

void OperationDevices::prepare(Operation& operation) {
  if (devices_ == nullptr) {
    throw Error(ErrorKind::kUsage, operation.spec.name + ": its tensors are on cuda:" +
                                       std::to_string(operation.gpu.device) + ", but this engine was made for the CPU");
  }
  const std::shared_ptr<EngineDevice> device = devices_->open(operation.gpu.device);
  find_libraries_();
  std::vector<void*> streams;
  for (const Buffer& input : operation.request.inputs) add_stream(input.stream, streams);
  for (const Buffer& output : operation.request.outputs) add_stream(output.stream, streams);
  for (void* stream : streams) {
    operation.gpu.ready.push_back(device->gpu()->record(static_cast<device::Stream>(stream)));
  }
}

void OperationDevices::order(const Operation& operation, int device, device::Stream stream) const {
  if (!operation.done()) throw Error(ErrorKind::kUsage, operation.spec.name + " is still in flight");
  if (const auto error = operation.gpu.error()) throw Error(*error);
  if (operation.gpu.finished.empty()) return;
  const std::shared_ptr<EngineDevice> ordered = devices_->open(device);
  for (const device::SharedEvent& event : operation.gpu.finished) event->hold(stream, *ordered->gpu());
}

std::shared_ptr<EngineDevice> OperationDevices::device_of(const Operation& operation) const {
  if (operation.gpu.device == kCpuDevice) return nullptr;
  auto device = devices_ == nullptr ? nullptr : devices_->find(operation.gpu.device);
  if (device == nullptr) {
    throw Error(ErrorKind::kInternal, "the coordinator ordered " + operation.spec.name + " on cuda:" +
                                          std::to_string(operation.gpu.device) + ", which this rank has never named");
  }
  return device;
}

OwnedArray OperationDevices::make_result(const Operation& operation, const Buffer& like, int64_t num_rows) const {
  Shape shape = like.shape;
  shape.front() = num_rows;
  const std::shared_ptr<EngineDevice> device = device_of(operation);
  return device == nullptr ? make_array(like.dtype, std::move(shape))
                           : make_device_array(device, like.dtype, std::move(shape));
}

}  // namespace hvd
