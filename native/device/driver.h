// The part of the CUDA driver's interface that is used, declared by hand and found at run time. HIP has the same calls
// under other names, so AMD's GPUs come through the same table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace hvd::device {

using Result = int;  // CUresult
inline constexpr Result kSuccess = 0;
inline constexpr Result kNotReady = 600;

using Context = struct OpaqueContext*;
using Stream = struct OpaqueStream*;
using RawEvent = struct OpaqueEvent*;
using Pointer = uint64_t;  // CUdeviceptr

struct Uuid {
  unsigned char bytes[16];
};

// Names are those of the driver without "cu" and the version of the call.
struct Functions {
  Result (*init)(unsigned flags);
  Result (*driver_get_version)(int* version);
  Result (*get_error_name)(Result error, const char** name);
  Result (*get_error_string)(Result error, const char** text);
  Result (*device_get_count)(int* count);
  Result (*device_get)(int* device, int ordinal);
  Result (*device_get_name)(char* name, int length, int device);
  Result (*device_get_uuid)(Uuid* uuid, int device);
  Result (*device_primary_ctx_get_state)(int device, unsigned* flags, int* active);
  Result (*device_primary_ctx_retain)(Context* context, int device);
  Result (*device_primary_ctx_release)(int device);
  Result (*ctx_push_current)(Context context);
  Result (*ctx_pop_current)(Context* context);
  Result (*ctx_get_stream_priority_range)(int* least, int* greatest);
  Result (*stream_create_with_priority)(Stream* stream, unsigned flags, int priority);
  Result (*stream_destroy)(Stream stream);
  Result (*stream_wait_event)(Stream stream, RawEvent event, unsigned flags);
  Result (*launch_host_func)(Stream stream, void (*function)(void*), void* data);
  Result (*event_create)(RawEvent* event, unsigned flags);
  Result (*event_record)(RawEvent event, Stream stream);
  Result (*event_query)(RawEvent event);
  Result (*event_synchronize)(RawEvent event);
  Result (*event_destroy)(RawEvent event);
  Result (*mem_host_alloc)(void** memory, size_t bytes, unsigned flags);
  Result (*mem_free_host)(void* memory);
  Result (*mem_alloc_async)(Pointer* memory, size_t bytes, Stream stream);
  Result (*mem_free_async)(Pointer memory, Stream stream);
  Result (*memset_d8_async)(Pointer memory, unsigned char value, size_t bytes, Stream stream);
  Result (*memcpy_dtoh_async)(void* to, Pointer from, size_t bytes, Stream stream);
  Result (*memcpy_htod_async)(Pointer to, const void* from, size_t bytes, Stream stream);
  Result (*memcpy_dtod_async)(Pointer to, Pointer from, size_t bytes, Stream stream);
};

// A driver that was found and initialized; one for each process and path. Makes no context by itself.
class Driver {
 public:
  // Takes a library that the process has loaded already before all others. Throws Error (kUsage) that lists what was
  // tried and why each did not do.
  [[nodiscard]] static std::shared_ptr<const Driver> load(const std::vector<std::string>& candidates);

  [[nodiscard]] const Functions& functions() const { return functions_; }
  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] int version() const { return version_; }  // 13010 is 13.1
  [[nodiscard]] int device_count() const;

  // Throws Error (kInternal) that names the call, the driver's words and `where` ("allreduce.x on cuda:1").
  void check(Result result, const char* call, const std::string& where) const;

 private:
  Driver() = default;
  // Of the library with this handle; the one that is known if it was taken before.
  [[nodiscard]] static std::shared_ptr<const Driver> take(void* handle, const std::string& candidate);

  Functions functions_{};
  std::string path_;
  int version_ = 0;
};

}  // namespace hvd::device
