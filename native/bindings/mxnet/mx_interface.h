// What we use of MXNet 1.9.1, declared by hand: we are compiled against no version of it. The functions are looked up
// in the libmxnet.so that the process has loaded already.
#pragma once

#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

namespace hvd::mxnet {

using ArrayHandle = void*;

// What an asynchronous operation of MXNet's engine calls once to end, from any thread: callback(engine, param, error).
// The error is a std::runtime_error of the C++ library that MXNet uses, or null.
struct OnComplete {
  void (*callback)(void* engine, void* param, const void* error);
  void* engine;
  void* param;
};

using Body = void (*)(void* run_context, void* on_complete, void* param);

// DLPack as MXNet writes it.
struct Tensor {
  void* data;
  int32_t device_type;
  int32_t device_id;
  int32_t num_dims;
  uint8_t type_code;
  uint8_t type_bits;
  uint16_t type_lanes;
  int64_t* shape;
  int64_t* strides;
  uint64_t byte_offset;
};
struct ManagedTensor {
  Tensor tensor;
  void* context;
  void (*release)(ManagedTensor*);
};

// Name without "MX", signature. All return 0 unless they failed.
#define HVD_MXNET_FUNCTIONS(X)                                                                               \
  X(GetVersion, int(int*))                                                                                   \
  X(GetLastError, const char*())                                                                             \
  X(NDArrayFree, int(ArrayHandle))                                                                           \
  X(ShallowCopyNDArray, int(ArrayHandle, ArrayHandle*))                                                      \
  X(NDArrayToDLPack, int(ArrayHandle, ManagedTensor**))                                                      \
  X(EnginePushAsyncND,                                                                                       \
    int(Body, void* param, void (*deleter)(void*), const void* context, ArrayHandle* inputs, int num_inputs, \
        ArrayHandle* outputs, int num_outputs, const void* property, int priority, const char* name, bool wait))

struct Functions {
#define HVD_DECLARE(name, signature) std::add_pointer_t<signature> name = nullptr;
  HVD_MXNET_FUNCTIONS(HVD_DECLARE)
#undef HVD_DECLARE
  // Of std::runtime_error in MXNet's C++ library, which need not be ours.
  void (*construct_error)(void* error, const char* text) = nullptr;
  void (*destroy_error)(void* error) = nullptr;
};

extern Functions mx;

// Why it does not work with the MXNet of this path, or an empty string. Before anything else is called.
[[nodiscard]] std::string look_up(const char* path);

// An operation on the CPU. MXNet calls the deleter behind the body, or without it if an array holds an error.
struct Work {
  Body body = nullptr;
  void (*deleter)(void*) = nullptr;
  void* param = nullptr;
  std::vector<ArrayHandle> inputs;
  std::vector<ArrayHandle> outputs;  // none that is an input
  int priority = 0;
  const char* name = "";
};

// Returns what MXNet says if it refuses the work.
[[nodiscard]] std::string push(Work work);

// Ends an operation; an empty text means success.
void complete(const OnComplete& on_complete, const std::string& error);

}  // namespace hvd::mxnet
