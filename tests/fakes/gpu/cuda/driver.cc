// The functions of the driver: devices and contexts.
#include <algorithm>
#include <cstring>

#include "cuda/exported.h"

namespace fake_cuda {
namespace {

const CodeName* find_code(Result code) {
  const auto* found = std::find_if(std::begin(kCodeNames), std::end(kCodeNames),
                                   [&](const CodeName& entry) { return entry.code == code; });
  return found == std::end(kCodeNames) ? nullptr : found;
}

Result get_uuid(unsigned char* uuid, int device) {
  const Device* found = Driver::get().device(device);
  if (found == nullptr) return kInvalidDevice;
  if (uuid == nullptr) return kInvalidValue;
  std::memcpy(uuid, Driver::get().uuid_of(*found).data(), 16);
  return kSuccess;
}

}  // namespace

EXPORTED Result cuInit(unsigned flags) {
  static Call call("cuInit");
  if (const Result failed = call.begin(false)) return failed;
  if (flags != 0) return kInvalidValue;
  if (Driver::get().device_count() == 0) return kNoDevice;
  Call::initialize();
  return kSuccess;
}

EXPORTED Result cuDriverGetVersion(int* version) {
  static Call call("cuDriverGetVersion");
  if (const Result failed = call.begin(false)) return failed;
  if (version == nullptr) return kInvalidValue;
  *version = settings().version;
  return kSuccess;
}

EXPORTED Result cuGetErrorName(Result code, const char** name) {
  if (name == nullptr) return kInvalidValue;
  const CodeName* found = find_code(code);
  *name = found == nullptr ? nullptr : found->name;
  return found == nullptr ? kInvalidValue : kSuccess;
}

EXPORTED Result cuGetErrorString(Result code, const char** text) {
  if (text == nullptr) return kInvalidValue;
  const CodeName* found = find_code(code);
  *text = found == nullptr ? nullptr : found->text;
  return found == nullptr ? kInvalidValue : kSuccess;
}

EXPORTED Result cuDeviceGetCount(int* count) {
  BEGIN_CALL(cuDeviceGetCount);
  if (count == nullptr) return kInvalidValue;
  *count = Driver::get().device_count();
  return kSuccess;
}

EXPORTED Result cuDeviceGet(int* device, int ordinal) {
  BEGIN_CALL(cuDeviceGet);
  if (device == nullptr) return kInvalidValue;
  if (Driver::get().device(ordinal) == nullptr) return kInvalidDevice;
  *device = ordinal;
  return kSuccess;
}

EXPORTED Result cuDeviceGetName(char* name, int length, int device) {
  BEGIN_CALL(cuDeviceGetName);
  if (Driver::get().device(device) == nullptr) return kInvalidDevice;
  if (name == nullptr || length <= 0) return kInvalidValue;
  const std::string text = "Fake GPU " + std::to_string(Driver::get().device(device)->number);
  const size_t count = std::min(text.size(), static_cast<size_t>(length) - 1);
  std::memcpy(name, text.data(), count);
  name[count] = 0;
  return kSuccess;
}

EXPORTED Result cuDeviceGetUuid(unsigned char* uuid, int device) {
  BEGIN_CALL(cuDeviceGetUuid);
  return get_uuid(uuid, device);
}

EXPORTED Result cuDeviceGetUuid_v2(unsigned char* uuid, int device) {
  BEGIN_CALL(cuDeviceGetUuid_v2);
  return get_uuid(uuid, device);
}

EXPORTED Result cuDevicePrimaryCtxGetState(int device, unsigned* flags, int* active) {
  BEGIN_CALL(cuDevicePrimaryCtxGetState);
  if (Driver::get().device(device) == nullptr) return kInvalidDevice;
  if (flags == nullptr || active == nullptr) return kInvalidValue;
  *flags = 0;
  *active = Driver::get().has_context(device) ? 1 : 0;
  return kSuccess;
}

EXPORTED Result cuDevicePrimaryCtxRetain(void** context, int device) {
  BEGIN_CALL(cuDevicePrimaryCtxRetain);
  return context == nullptr ? kInvalidValue : Driver::get().retain(device, context);
}

EXPORTED Result cuDevicePrimaryCtxRelease_v2(int device) {
  BEGIN_CALL(cuDevicePrimaryCtxRelease_v2);
  return Driver::get().release(device);
}

EXPORTED Result cuCtxPushCurrent_v2(void* context) {
  BEGIN_CALL(cuCtxPushCurrent_v2);
  SharedContext found = Driver::get().context(context);
  if (found == nullptr) {
    note_wrong_use("cuCtxPushCurrent_v2 was given a context that does not exist");
    return kInvalidContext;
  }
  context_stack().push_back(std::move(found));
  return kSuccess;
}

EXPORTED Result cuCtxPopCurrent_v2(void** context) {
  BEGIN_CALL(cuCtxPopCurrent_v2);
  if (context_stack().empty()) {
    note_wrong_use("cuCtxPopCurrent_v2 was called on a thread without a context");
    return kInvalidContext;
  }
  if (context != nullptr) *context = Driver::get().handle_of(context_stack().back());
  context_stack().pop_back();
  return kSuccess;
}

EXPORTED Result cuCtxGetCurrent(void** context) {
  BEGIN_CALL(cuCtxGetCurrent);
  if (context == nullptr) return kInvalidValue;
  *context = context_stack().empty() ? nullptr : Driver::get().handle_of(context_stack().back());
  return kSuccess;
}

// As frameworks do: it replaces what is on top.
EXPORTED Result cuCtxSetCurrent(void* context) {
  BEGIN_CALL(cuCtxSetCurrent);
  SharedContext found = Driver::get().context(context);
  if (context != nullptr && found == nullptr) return kInvalidContext;
  if (!context_stack().empty()) context_stack().pop_back();
  if (found != nullptr) context_stack().push_back(std::move(found));
  return kSuccess;
}

EXPORTED Result cuCtxGetDevice(int* device) {
  BEGIN_CALL(cuCtxGetDevice);
  SharedContext context;
  RETURN_IF_FAILED(find_current(call.name(), context));
  if (device == nullptr) return kInvalidValue;
  *device = Driver::get().index_of(context->device);
  return kSuccess;
}

EXPORTED Result cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  BEGIN_CALL(cuCtxGetStreamPriorityRange);
  SharedContext context;
  RETURN_IF_FAILED(find_current(call.name(), context));
  if (least != nullptr) *least = 0;
  if (greatest != nullptr) *greatest = -5;
  return kSuccess;
}

}  // namespace fake_cuda
