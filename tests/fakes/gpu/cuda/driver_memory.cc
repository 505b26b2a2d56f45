// The functions of the driver: memory, and copies in the order of streams.
#include <cstring>

#include "cuda/exported.h"

namespace fake_cuda {
namespace {

// Work that finds a place gone when its time has come breaks the device, as a kernel does.
void break_device(Device& device, const char* call) {
  note_wrong_use(std::string(call) + " found memory of the device that was not there when the stream came to it");
  device.error = kIllegalAddress;
}

Result check_host(const char* call, const void* host, size_t bytes) {
  if (bytes == 0) return kSuccess;
  if (host == nullptr) return kInvalidValue;
  if (!settings().strict || memory().pinned(host, bytes) != nullptr) return kSuccess;
  note_wrong_use(std::string(call) + " was given memory of the host that is not pinned");
  return kInvalidValue;
}

Result check_device(const char* call, Pointer address, size_t bytes) {
  if (memory().accepts(address, bytes)) return kSuccess;
  note_wrong_use(std::string(call) + " was given memory of the device that does not exist");
  return kInvalidValue;
}

Result copy(const char* call, void* handle, Pointer to, Pointer from, size_t bytes) {
  SharedContext context;
  std::shared_ptr<Stream> stream;
  RETURN_IF_FAILED(find_stream(call, handle, false, context, stream));
  // Held until the copy is done, so that freeing it meanwhile is noticed.
  const std::pair pinned(memory().pinned(reinterpret_cast<void*>(to), bytes),
                         memory().pinned(reinterpret_cast<void*>(from), bytes));
  Device& device = context->device;
  Driver::get().add(context, stream, [=, &device, held = pinned] {
    const Bytes target = memory().resolve(to, bytes);
    const Bytes source = memory().resolve(from, bytes);
    if (target == nullptr || source == nullptr) return break_device(device, call);
    if (bytes > 0) std::memmove(target.get(), source.get(), bytes);
  });
  return kSuccess;
}

}  // namespace

EXPORTED Result cuMemHostAlloc(void** host, size_t bytes, unsigned flags) {
  BEGIN_CALL(cuMemHostAlloc);
  SharedContext context;
  RETURN_IF_FAILED(find_current(call.name(), context));
  return flags > 7 ? kInvalidValue : memory().pin(context.get(), bytes, host);
}

EXPORTED Result cuMemFreeHost(void* host) {
  BEGIN_CALL(cuMemFreeHost);
  SharedContext context;
  RETURN_IF_FAILED(find_current(call.name(), context) == kContextIsDestroyed ? kContextIsDestroyed : kSuccess);
  const Result freed = memory().unpin(host);
  if (freed != kSuccess) note_wrong_use("cuMemFreeHost was given memory that is not pinned");
  return freed;
}

EXPORTED Result cuMemAlloc_v2(Pointer* address, size_t bytes) {
  BEGIN_CALL(cuMemAlloc_v2);
  SharedContext context;
  RETURN_IF_FAILED(find_current(call.name(), context));
  RETURN_IF_FAILED(memory().allocate(context.get(), bytes, address));
  memory().make_valid(*address);
  return kSuccess;
}

EXPORTED Result cuMemFree_v2(Pointer address) {
  BEGIN_CALL(cuMemFree_v2);
  SharedContext context;
  RETURN_IF_FAILED(find_current(call.name(), context));
  RETURN_IF_FAILED(memory().begin_free(address));
  memory().end_free(address);
  return kSuccess;
}

EXPORTED Result cuMemAllocAsync(Pointer* address, size_t bytes, void* handle) {
  BEGIN_CALL(cuMemAllocAsync);
  SharedContext context;
  std::shared_ptr<Stream> stream;
  RETURN_IF_FAILED(find_stream(call.name(), handle, false, context, stream));
  RETURN_IF_FAILED(memory().allocate(context.get(), bytes, address));
  Driver::get().add(context, stream, [made = *address] { memory().make_valid(made); });
  return kSuccess;
}

EXPORTED Result cuMemFreeAsync(Pointer address, void* handle) {
  BEGIN_CALL(cuMemFreeAsync);
  SharedContext context;
  std::shared_ptr<Stream> stream;
  const Result failed = find_stream(call.name(), handle, false, context, stream);
  const bool device_failed = context != nullptr && context->alive && context->device.error != kSuccess;
  if (failed != kSuccess && !device_failed) return failed;
  if (memory().begin_free(address) != kSuccess) {
    note_wrong_use("cuMemFreeAsync was given memory that does not exist");
    return kInvalidValue;
  }
  if (failed != kSuccess) {
    memory().end_free(address);  // nothing will, when the device has failed
    return failed;
  }
  Driver::get().add(context, stream, [address] { memory().end_free(address); });
  return kSuccess;
}

EXPORTED Result cuMemsetD8Async(Pointer address, unsigned char value, size_t bytes, void* handle) {
  BEGIN_CALL(cuMemsetD8Async);
  SharedContext context;
  std::shared_ptr<Stream> stream;
  RETURN_IF_FAILED(find_stream(call.name(), handle, false, context, stream));
  RETURN_IF_FAILED(check_device(call.name(), address, bytes));
  Device& device = context->device;
  Driver::get().add(context, stream, [=, &device] {
    const Bytes target = memory().resolve(address, bytes);
    if (target == nullptr) return break_device(device, "cuMemsetD8Async");
    if (bytes > 0) std::memset(target.get(), value, bytes);
  });
  return kSuccess;
}

EXPORTED Result cuMemcpyDtoHAsync_v2(void* to, Pointer from, size_t bytes, void* stream) {
  BEGIN_CALL(cuMemcpyDtoHAsync_v2);
  RETURN_IF_FAILED(check_host(call.name(), to, bytes));
  RETURN_IF_FAILED(check_device(call.name(), from, bytes));
  return copy(call.name(), stream, reinterpret_cast<Pointer>(to), from, bytes);
}

EXPORTED Result cuMemcpyHtoDAsync_v2(Pointer to, const void* from, size_t bytes, void* stream) {
  BEGIN_CALL(cuMemcpyHtoDAsync_v2);
  RETURN_IF_FAILED(check_host(call.name(), from, bytes));
  RETURN_IF_FAILED(check_device(call.name(), to, bytes));
  return copy(call.name(), stream, to, reinterpret_cast<Pointer>(from), bytes);
}

EXPORTED Result cuMemcpyDtoDAsync_v2(Pointer to, Pointer from, size_t bytes, void* stream) {
  BEGIN_CALL(cuMemcpyDtoDAsync_v2);
  RETURN_IF_FAILED(check_device(call.name(), to, bytes));
  RETURN_IF_FAILED(check_device(call.name(), from, bytes));
  return copy(call.name(), stream, to, from, bytes);
}

}  // namespace fake_cuda
