#include "device/driver.h"

#include <dlfcn.h>

#include <map>
#include <mutex>

#include "base/error.h"

namespace hvd::device {
namespace {

// Which of the names a library has: NVIDIA's, or AMD's, which are untested.
enum class Names : uint8_t { kCuda, kHip };

struct Library {
  void* handle = nullptr;
  Names names = Names::kCuda;
};

template <class Function>
void resolve(const Library& library, Function*& function, const char* cuda, const char* hip) {
  const char* name = library.names == Names::kCuda ? cuda : hip;
  void* found = dlsym(library.handle, name);
  if (found == nullptr) {
    throw Error(ErrorKind::kUsage, std::string("it lacks ") + name + ", which drivers have since CUDA 11.4");
  }
  function = reinterpret_cast<Function*>(found);
}

// A call that changed its meaning once got another name (_v2); the plain one still has the old meaning.
void resolve_devices(const Library& from, Functions& all) {
  resolve(from, all.init, "cuInit", "hipInit");
  resolve(from, all.driver_get_version, "cuDriverGetVersion", "hipDriverGetVersion");
  resolve(from, all.get_error_name, "cuGetErrorName", "hipDrvGetErrorName");
  resolve(from, all.get_error_string, "cuGetErrorString", "hipDrvGetErrorString");
  resolve(from, all.device_get_count, "cuDeviceGetCount", "hipGetDeviceCount");
  resolve(from, all.device_get, "cuDeviceGet", "hipDeviceGet");
  resolve(from, all.device_get_name, "cuDeviceGetName", "hipDeviceGetName");
  resolve(from, all.device_get_uuid, "cuDeviceGetUuid_v2", "hipDeviceGetUuid");
  resolve(from, all.device_primary_ctx_get_state, "cuDevicePrimaryCtxGetState", "hipDevicePrimaryCtxGetState");
  resolve(from, all.device_primary_ctx_retain, "cuDevicePrimaryCtxRetain", "hipDevicePrimaryCtxRetain");
  resolve(from, all.device_primary_ctx_release, "cuDevicePrimaryCtxRelease_v2", "hipDevicePrimaryCtxRelease");
  resolve(from, all.ctx_push_current, "cuCtxPushCurrent_v2", "hipCtxPushCurrent");
  resolve(from, all.ctx_pop_current, "cuCtxPopCurrent_v2", "hipCtxPopCurrent");
}

void resolve_streams(const Library& from, Functions& all) {
  resolve(from, all.ctx_get_stream_priority_range, "cuCtxGetStreamPriorityRange", "hipDeviceGetStreamPriorityRange");
  resolve(from, all.stream_create_with_priority, "cuStreamCreateWithPriority", "hipStreamCreateWithPriority");
  resolve(from, all.stream_destroy, "cuStreamDestroy_v2", "hipStreamDestroy");
  resolve(from, all.stream_wait_event, "cuStreamWaitEvent", "hipStreamWaitEvent");
  resolve(from, all.launch_host_func, "cuLaunchHostFunc", "hipLaunchHostFunc");
  resolve(from, all.event_create, "cuEventCreate", "hipEventCreateWithFlags");
  resolve(from, all.event_record, "cuEventRecord", "hipEventRecord");
  resolve(from, all.event_query, "cuEventQuery", "hipEventQuery");
  resolve(from, all.event_synchronize, "cuEventSynchronize", "hipEventSynchronize");
  resolve(from, all.event_destroy, "cuEventDestroy_v2", "hipEventDestroy");
}

void resolve_memory(const Library& from, Functions& all) {
  resolve(from, all.mem_host_alloc, "cuMemHostAlloc", "hipHostMalloc");
  resolve(from, all.mem_free_host, "cuMemFreeHost", "hipHostFree");
  resolve(from, all.mem_alloc_async, "cuMemAllocAsync", "hipMallocAsync");
  resolve(from, all.mem_free_async, "cuMemFreeAsync", "hipFreeAsync");
  resolve(from, all.memset_d8_async, "cuMemsetD8Async", "hipMemsetD8Async");
  resolve(from, all.memcpy_dtoh_async, "cuMemcpyDtoHAsync_v2", "hipMemcpyDtoHAsync");
  resolve(from, all.memcpy_htod_async, "cuMemcpyHtoDAsync_v2", "hipMemcpyHtoDAsync");
  resolve(from, all.memcpy_dtod_async, "cuMemcpyDtoDAsync_v2", "hipMemcpyDtoDAsync");
}

Functions resolve_all(void* handle) {
  Library from{.handle = handle};
  if (dlsym(handle, "cuInit") == nullptr && dlsym(handle, "hipInit") != nullptr) from.names = Names::kHip;
  Functions all{};
  resolve_devices(from, all);
  resolve_streams(from, all);
  resolve_memory(from, all);
  return all;
}

// Where the loader found it.
std::string path_of(const Functions& functions, const std::string& candidate) {
  Dl_info info{};
  const bool known = dladdr(reinterpret_cast<void*>(functions.init), &info) != 0 && info.dli_fname != nullptr;
  return known ? info.dli_fname : candidate;
}

std::string words_of(const Functions& functions, Result result) {
  const char* name = nullptr;
  const char* text = nullptr;
  std::string words = "error " + std::to_string(result);
  if (functions.get_error_name(result, &name) == kSuccess && name != nullptr) words += std::string(" (") + name + ")";
  if (functions.get_error_string(result, &text) == kSuccess && text != nullptr) words += std::string(": ") + text;
  return words;
}

// One that the program has loaded already: the framework's tensors belong to it.
void* find_loaded(const std::vector<std::string>& candidates) {
  for (const std::string& candidate : candidates) {
    if (void* found = dlopen(candidate.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD)) return found;
  }
  return nullptr;
}

// Engines of several threads share what they found. Nothing here keeps a driver alive.
struct Drivers {
  std::mutex mutex;
  std::map<std::string, std::weak_ptr<const Driver>> by_path;
};

Drivers& drivers() {
  static Drivers all;
  return all;
}

}  // namespace

std::shared_ptr<const Driver> Driver::take(void* handle, const std::string& candidate) {
  auto made = std::shared_ptr<Driver>(new Driver);
  made->functions_ = resolve_all(handle);
  made->path_ = path_of(made->functions_, candidate);
  std::weak_ptr<const Driver>& known = drivers().by_path[made->path_];
  if (auto driver = known.lock()) return driver;
  const Result result = made->functions_.init(0);
  if (result != kSuccess) {
    throw Error(ErrorKind::kUsage, made->path_ + " does not start: " + words_of(made->functions_, result));
  }
  made->check(made->functions_.driver_get_version(&made->version_), "cuDriverGetVersion", made->path_);
  known = made;
  return made;
}

std::shared_ptr<const Driver> Driver::load(const std::vector<std::string>& candidates) {
  const std::lock_guard lock(drivers().mutex);
  void* loaded = find_loaded(candidates);
  std::string reasons;
  for (const std::string& candidate : candidates) {
    void* handle = loaded != nullptr ? loaded : dlopen(candidate.c_str(), RTLD_NOW | RTLD_LOCAL);
    try {
      if (handle == nullptr) throw Error(ErrorKind::kUsage, dlerror());
      return take(handle, candidate);
    } catch (const Error& error) {
      reasons += "\n  " + candidate + ": " + error.what();
    }
  }
  throw Error(ErrorKind::kUsage,
              "there is no usable GPU driver on this host. Tried:" + (reasons.empty() ? " nothing" : reasons));
}

int Driver::device_count() const {
  int count = 0;
  check(functions_.device_get_count(&count), "cuDeviceGetCount", path_);
  return count;
}

void Driver::check(Result result, const char* call, const std::string& where) const {
  if (result == kSuccess) return;
  throw Error(ErrorKind::kInternal, std::string(call) + " failed for " + where + ": " + words_of(functions_, result));
}

}  // namespace hvd::device
