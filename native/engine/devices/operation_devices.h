// Tensors on GPUs: what submission records on the device, where results lie, and who waits for what.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/devices/devices.h"
#include "engine/submission/operation.h"

namespace hvd {

// Thread-safe.
class OperationDevices {
 public:
  // `driver_candidates`: none if there are no tensors on GPUs. `find_libraries`: loads what else a device needs, and
  // may take long.
  OperationDevices(std::optional<std::vector<std::string>> driver_candidates, std::function<void()> find_libraries);

  // Whether open() finds the GPU ready. If not, it may take long: it loads libraries.
  [[nodiscard]] bool knows(int index) const;

  // Notes on which device the operation is. Throws Error (kUsage) if its tensors are on several.
  void find(Operation& operation) const;
  // Of an operation on a GPU: records what its streams have to do before. On the caller's thread, so that errors reach
  // the caller, and without a lock, as libraries may have to be loaded.
  void prepare(Operation& operation);
  // A stream of a GPU goes on only behind the operation, which is done. Throws Error (kUsage) if it is not, or on
  // another GPU, and what the device failed with.
  void order(const Operation& operation, int device, device::Stream stream) const;

  // None on the CPU. Throws Error (kInternal) if this rank has never named the device.
  [[nodiscard]] std::shared_ptr<EngineDevice> device_of(const Operation& operation) const;
  // A result whose first dimension is known now.
  [[nodiscard]] OwnedArray make_result(const Operation& operation, const Buffer& like, int64_t num_rows) const;

 private:
  [[nodiscard]] int device_to_join_with(int named) const;

  const std::unique_ptr<Devices> devices_;
  const std::function<void()> find_libraries_;
};

}  // namespace hvd
