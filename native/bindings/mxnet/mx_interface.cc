#include "bindings/mxnet/mx_interface.h"

#include <dlfcn.h>

namespace hvd::mxnet {
namespace {

constexpr int kVersion = 10901;

// What the engine's interface wants to know of the device and of the kind of operation.
struct CpuContext {
  int32_t device_type = 1;
  int32_t device_id = 0;
};
constexpr CpuContext kCpu;
constexpr int kPrioritized = 3;

// The size of a std::runtime_error of libstdc++.
struct alignas(void*) RuntimeError {
  void* words[4];
};

}  // namespace

Functions mx;

std::string look_up(const char* path) {
  void* library = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return std::string(path) + " is not loaded";
  std::string missing;
  const auto find = [&](const char* name) {
    void* found = dlsym(library, name);
    if (found == nullptr) missing += (missing.empty() ? "it lacks " : ", ") + std::string(name);
    return found;
  };
#define HVD_LOOK_UP(name, signature) mx.name = reinterpret_cast<decltype(mx.name)>(find("MX" #name));
  HVD_MXNET_FUNCTIONS(HVD_LOOK_UP)
#undef HVD_LOOK_UP
  mx.construct_error = reinterpret_cast<decltype(mx.construct_error)>(find("_ZNSt13runtime_errorC1EPKc"));
  mx.destroy_error = reinterpret_cast<decltype(mx.destroy_error)>(find("_ZNSt13runtime_errorD1Ev"));
  if (!missing.empty()) return missing;
  int version = 0;
  if (mx.GetVersion(&version) == 0 && version == kVersion) return "";
  return "its version number is " + std::to_string(version) + " instead of " + std::to_string(kVersion);
}

std::string push(Work work) {
  const int failed = mx.EnginePushAsyncND(
      work.body, work.param, work.deleter, &kCpu, work.inputs.data(), static_cast<int>(work.inputs.size()),
      work.outputs.data(), static_cast<int>(work.outputs.size()), &kPrioritized, work.priority, work.name, false);
  return failed == 0 ? "" : mx.GetLastError();
}

void complete(const OnComplete& on_complete, const std::string& error) {
  if (error.empty()) return on_complete.callback(on_complete.engine, on_complete.param, nullptr);
  RuntimeError object = {};
  mx.construct_error(&object, error.c_str());
  on_complete.callback(on_complete.engine, on_complete.param, &object);  // MXNet copies it
  mx.destroy_error(&object);
}

}  // namespace hvd::mxnet
