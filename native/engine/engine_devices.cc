// Tensors on GPUs: what submission records on the device, where results lie, and who waits for what.
//
// Callers go on as soon as a collective is on its stream. The engine keeps the execution until the device is done, so
// that failures and the stall check see it, and says when memory is free.
#include <algorithm>

#include "backend/native/native_backend.h"
#include "engine/check.h"
#include "engine/engine.h"

namespace hvd {
namespace {

// What devices are at work on when the engine is closed may take this long: callers have been told that it is ordered
// behind what they do next. The loss of a rank ends the wait before.
constexpr Duration kDeviceEndTime = std::chrono::seconds(30);

void add_stream(void* stream, std::vector<void*>& streams) {
  if (std::find(streams.begin(), streams.end(), stream) == streams.end()) streams.push_back(stream);
}

}  // namespace

std::unique_ptr<GpuBackend> Engine::make_gpu_backend() {
  if (!options_.gpu) return nullptr;
  GpuBackend::Surroundings surroundings{.deterministic = options_.deterministic,
                                        .name_of_rank = [this](int rank) { return name_of_rank(rank); },
                                        .log = options_.log,
                                        .ring = [this] { transport_->doorbell().ring(); }};
  auto host = std::make_unique<NativeBackend>(*transport_, options_.deterministic, options_.plans);
  return std::make_unique<GpuBackend>(std::move(host), *options_.gpu, nccl_finder_, std::move(surroundings));
}

bool Engine::knows_device(int index) const { return devices_ != nullptr && devices_->find(index) != nullptr; }

// A rank that joins names a device for what stands in for its tensors on GPUs. Scripts name one wherever they run, so
// what cannot be used is passed over; operations on GPUs, if there are any, say what this rank lacks.
int Engine::device_to_join_with(int named) {
  if (devices_ == nullptr) return kCpuDevice;
  if (named < 0) return devices_->last_used();
  try {
    static_cast<void>(devices_->open(named));
    return named;
  } catch (const Error&) {
    return devices_->last_used();
  }
}

// On the caller's thread, so that errors reach the caller, and without a lock, as libraries may have to be loaded.
void Engine::prepare_device(Operation& operation) {
  if (operation.spec.kind == OpKind::kJoin) {
    operation.gpu.device = device_to_join_with(operation.request.device);
  } else {
    operation.gpu.device = common_device(operation);
  }
  if (operation.gpu.device == kCpuDevice) return;
  {
    const std::lock_guard lock(queue_mutex_);
    refuse_if_ended(operation);
  }
  if (devices_ == nullptr) {
    throw Error(ErrorKind::kUsage, operation.spec.name + ": its tensors are on cuda:" +
                                       std::to_string(operation.gpu.device) + ", but this engine was made for the CPU");
  }
  const std::shared_ptr<EngineDevice> device = devices_->open(operation.gpu.device);
  nccl_finder_->find();
  std::vector<void*> streams;
  for (const Buffer& input : operation.request.inputs) add_stream(input.stream, streams);
  for (const Buffer& output : operation.request.outputs) add_stream(output.stream, streams);
  for (void* stream : streams) {
    operation.gpu.ready.push_back(device->gpu()->record(static_cast<device::Stream>(stream)));
  }
}

void Engine::order(const Operation& operation, int device, device::Stream stream) const {
  if (!operation.done()) throw Error(ErrorKind::kUsage, operation.spec.name + " is still in flight");
  if (const auto error = operation.gpu.error()) throw Error(*error);
  if (operation.gpu.finished.empty()) return;
  const std::shared_ptr<EngineDevice> ordered = devices_->open(device);
  for (const device::SharedEvent& event : operation.gpu.finished) event->hold(stream, *ordered->gpu());
}

std::shared_ptr<EngineDevice> Engine::device_of(const Operation& operation) const {
  if (operation.gpu.device == kCpuDevice) return nullptr;
  auto device = devices_ == nullptr ? nullptr : devices_->find(operation.gpu.device);
  if (device == nullptr) {
    throw Error(ErrorKind::kInternal, "the coordinator ordered " + operation.spec.name + " on cuda:" +
                                          std::to_string(operation.gpu.device) + ", which this rank has never named");
  }
  return device;
}

// A result whose first dimension is known now.
OwnedArray Engine::make_result(const Operation& operation, const Buffer& like, int64_t num_rows) const {
  Shape shape = like.shape;
  shape.front() = num_rows;
  const std::shared_ptr<EngineDevice> device = device_of(operation);
  return device == nullptr ? make_array(like.dtype, std::move(shape))
                           : make_device_array(device, like.dtype, std::move(shape));
}

// What was agreed on before is looked at again: memory follows from it.
void Engine::place_on_gpu(const std::vector<std::shared_ptr<Operation>>& operations, const Response& response,
                          Batch& batch) const {
  const Operation& first = *operations.front();
  const bool on_gpu = first.spec.on_gpu;
  const bool fits = response.devices.size() == (on_gpu ? batch.members.size() : 0) &&
                    (!on_gpu || response.devices[static_cast<size_t>(batch.set_rank)] == first.gpu.device) &&
                    std::all_of(operations.begin(), operations.end(), [&](const auto& operation) {
                      return operation->spec.on_gpu == on_gpu && (!on_gpu || operation->gpu.device == first.gpu.device);
                    });
  if (!fits) {
    throw Error(ErrorKind::kInternal,
                "the coordinator ordered " + first.spec.name + " on other devices than those that this rank named");
  }
  if (!on_gpu) return;
  const std::shared_ptr<EngineDevice> device = device_of(first);
  batch.devices.assign(response.devices.begin(), response.devices.end());
  batch.gpu = device->gpu();
  for (const auto& operation : operations) {
    batch.ready.insert(batch.ready.end(), operation->gpu.ready.begin(), operation->gpu.ready.end());
  }
  if (!first.result.arrays.empty()) batch.ready.push_back(device->record());
  batch.what = first.spec.name;
  if (operations.size() > 1) batch.what += " and " + std::to_string(operations.size() - 1) + " others";
}

Backend& Engine::backend_for(const Operation& operation) {
  if (!operation.spec.on_gpu) return *backend_;
  counters_.gpu_batches.fetch_add(1, std::memory_order_relaxed);
  return *gpu_backend_;
}

// Callers may go on. On the CPU that is when all is done.
void Engine::hand_over(Active& active) {
  active.handed_over = true;
  if (gpu_backend_ != nullptr) counters_.nccl_batches.store(gpu_backend_->num_nccl_batches());
  record_execution(active, false);
  if (active.operations.front()->spec.on_gpu) record_device(active, true);
  const device::SharedEvent finished = active.execution->finished();
  for (const auto& operation : active.operations) {
    if (finished != nullptr) {
      operation->gpu.finished.push_back(finished);
      const bool owns_memory = !operation->result.arrays.empty() || !operation->state.scratch.empty();
      if (owns_memory) device_of(*operation)->await({finished});
      for (OwnedArray& result : operation->result.arrays) result.written.push_back(finished);
    }
    if (--operation->state.executions_left == 0) finish(*operation);
  }
}

// Kernels are aborted, as far as that is possible. What may still be written to is not freed. An engine that ends well
// lets communicators end in good order.
void Engine::give_up_on_devices(const Error& error) {
  if (gpu_backend_ == nullptr) return;
  const bool busy = std::any_of(active_.begin(), active_.end(), [](const Active& active) {
    return active.operations.front()->spec.on_gpu && !active.execution->done();
  });
  if (busy || error.kind() != ErrorKind::kShutDown) gpu_backend_->give_up(error.what());
  for (const Active& active : active_) {
    if (!active.operations.front()->spec.on_gpu) continue;
    const bool known_end = active.handed_over || !active.execution->may_be_on_device();
    for (const auto& operation : active.operations) {
      operation->gpu.settle_with(Error(error.kind(), operation->spec.name + " failed: " + error.what()), known_end);
      const bool owns_memory =
          !operation->result.arrays.empty() || !operation->state.scratch.empty() || operation->request.keeper;
      if (!owns_memory) continue;
      if (known_end) {
        left_to_devices_.push_back(operation);
      } else {
        keep_for_ever(operation);
      }
    }
  }
}

// After a failure: frees what devices have done with meanwhile.
void Engine::look_for_ended_devices() {
  std::erase_if(left_to_devices_, [](const std::shared_ptr<Operation>& operation) {
    if (!operation->settled()) return false;
    operation->request.keeper.reset();
    return true;
  });
}

// The last collectives of a job that ends well may still be under way: other ranks take part in them.
bool Engine::devices_have_ended() {
  const bool busy =
      std::any_of(active_.begin(), active_.end(), [](const Active& active) { return active.handed_over; });
  if (!busy) return true;
  const TimePoint now = std::chrono::steady_clock::now();
  if (!devices_awaited_) devices_awaited_ = now;
  return now - *devices_awaited_ >= kDeviceEndTime;
}

}  // namespace hvd
