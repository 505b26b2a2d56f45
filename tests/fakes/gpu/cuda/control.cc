// What tests and the fake NCCL ask for.
#include <cstring>

#define FAKE_CUDA_INSIDE
#include "cuda/exported.h"
#include "cuda_control.h"

namespace fake_cuda {

EXPORTED int64_t fake_cuda_alive(const char* what) { return Driver::get().alive(what); }
EXPORTED int64_t fake_cuda_calls(const char* function) { return Call::count_of(function); }

EXPORTED int64_t fake_cuda_contexts_made(int device) {
  const Device* found = Driver::get().device(device);
  return found == nullptr ? -1 : found->contexts_made.load();
}

EXPORTED const char* fake_cuda_wrong_uses() {
  thread_local std::string text;
  text = wrong_uses();
  return text.c_str();
}

EXPORTED int fake_cuda_configure(const char* specification) { return configure(specification) ? 1 : 0; }

EXPORTED void fake_cuda_hold_device(int device) {
  if (Device* found = Driver::get().device(device)) found->held = true;
}

EXPORTED void fake_cuda_release_device(int device) {
  if (Device* found = Driver::get().device(device)) found->held = false;
}

EXPORTED int fake_cuda_hold_stream(void* stream) {
  const auto found = Driver::get().stream(stream);
  if (found != nullptr) found->hold(true);
  return found == nullptr ? 0 : 1;
}

EXPORTED int fake_cuda_release_stream(void* stream) {
  const auto found = Driver::get().stream(stream);
  if (found != nullptr) found->hold(false);
  return found == nullptr ? 0 : 1;
}

EXPORTED void fake_cuda_fail_device(int device, int code) { fake_cuda_break_device(device, code); }

EXPORTED int64_t fake_cuda_reset() {
  reset_settings();
  for (int i = 0; i < Driver::get().device_count(); ++i) {
    Device& device = *Driver::get().device(i);
    device.error = kSuccess;
    device.held = false;
    device.contexts_made = 0;
  }
  Driver::get().reap(std::chrono::milliseconds(1000));
  int64_t total = 0;
  for (const char* what : {"contexts", "streams", "events", "pinned blocks", "allocations"}) {
    total += Driver::get().alive(what);
  }
  return total;
}

EXPORTED int fake_cuda_synchronize(void* handle) {
  SharedContext context;
  std::shared_ptr<Stream> stream;
  if (handle == nullptr) {
    RETURN_IF_FAILED(find_stream("fake_cuda_synchronize", handle, true, context, stream));
  } else {
    stream = Driver::get().stream(handle);
  }
  if (stream == nullptr) return kInvalidHandle;
  const bool reached = stream->wait_until_reached(stream->last(), nullptr);
  RETURN_IF_FAILED(stream->device().error);
  return reached ? kSuccess : kLaunchTimeout;
}

EXPORTED int fake_cuda_read(uint64_t address, void* to, uint64_t bytes) {
  const Bytes found = memory().resolve(address, bytes);
  if (found == nullptr) return kIllegalAddress;
  std::memcpy(to, found.get(), bytes);
  return kSuccess;
}

EXPORTED int fake_cuda_write(uint64_t address, const void* from, uint64_t bytes) {
  const Bytes found = memory().resolve(address, bytes);
  if (found == nullptr) return kIllegalAddress;
  std::memcpy(found.get(), from, bytes);
  return kSuccess;
}

EXPORTED int fake_cuda_stream_flags(void* stream) {
  const auto found = Driver::get().stream(stream);
  return found == nullptr ? -1 : static_cast<int>(found->flags());
}

EXPORTED int fake_cuda_stream_priority(void* stream) {
  const auto found = Driver::get().stream(stream);
  return found == nullptr ? 0 : found->priority();
}

StreamPlace fake_cuda_find_stream(void* handle, int device) {
  const SharedContext context = Driver::get().device(device) == nullptr ? nullptr : Driver::get().primary(device);
  if (context == nullptr) return {};
  auto stream = handle == nullptr ? Driver::get().default_stream(context) : Driver::get().stream(handle);
  if (stream == nullptr) return {};
  const int its_device = Driver::get().index_of(stream->device());
  return {its_device, std::move(stream)};
}

void fake_cuda_enqueue(const StreamPlace& place, std::function<void()> work) {
  const auto stream = std::static_pointer_cast<Stream>(place.stream);
  const SharedContext context = Driver::get().context_of(*stream);
  if (context != nullptr) Driver::get().add(context, stream, std::move(work));
}

std::shared_ptr<std::byte> fake_cuda_resolve(const void* address, size_t bytes) {
  return memory().resolve(reinterpret_cast<Pointer>(address), bytes);
}

int fake_cuda_current_device() {
  if (context_stack().empty() || !context_stack().back()->alive) return -1;
  return Driver::get().index_of(context_stack().back()->device);
}

std::string fake_cuda_uuid_of(int device) {
  const Device* found = Driver::get().device(device);
  return found == nullptr ? "" : Driver::get().uuid_of(*found);
}

void fake_cuda_note_wrong_use(const std::string& text) { note_wrong_use(text); }

bool fake_cuda_is_ending(const StreamPlace& place) {
  return static_cast<const Stream*>(place.stream.get())->is_ending();
}

void fake_cuda_break_device(int device, int code) {
  if (Device* found = Driver::get().device(device)) found->error = code;
}

bool fake_cuda_in_host_function() { return in_host_function(); }

}  // namespace fake_cuda
