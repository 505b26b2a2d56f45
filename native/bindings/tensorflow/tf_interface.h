// What we use of TensorFlow's C interface, declared by hand: we are compiled against no version of TensorFlow. The
// functions are looked up in the library that the process has loaded already.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

struct TF_AsyncOpKernelDoneCallback;
struct TF_KernelBuilder;
struct TF_OpDefinitionBuilder;
struct TF_OpKernelConstruction;
struct TF_OpKernelContext;
struct TF_ShapeHandle;
struct TF_ShapeInferenceContext;
struct TF_Status;
struct TF_Tensor;

namespace hvd::tensorflow {

// TF_Code
enum StatusCode : int {
  kOk = 0,
  kCancelled = 1,
  kUnknown = 2,
  kInvalidArgument = 3,
  kFailedPrecondition = 9,
  kAborted = 10,
};

// TF_DataType
using DataType = int;
inline constexpr DataType kTypeInt32 = 3;

struct StringView {
  const char* data;
  size_t size;
};

using ShapeFunction = void (*)(TF_ShapeInferenceContext*, TF_Status*);

// Result, name without "TF_", arguments.
#define HVD_TENSORFLOW_FUNCTIONS(X)                                                                                    \
  X(TF_Status*, NewStatus, ())                                                                                         \
  X(void, DeleteStatus, (TF_Status*))                                                                                  \
  X(void, SetStatus, (TF_Status*, int code, const char*))                                                              \
  X(int, GetCode, (const TF_Status*))                                                                                  \
  X(const char*, Message, (const TF_Status*))                                                                          \
  X(TF_Tensor*, NewTensor,                                                                                             \
    (int dtype, const int64_t* dims, int num_dims, void* data, size_t bytes, void (*release)(void*, size_t, void*),    \
     void* argument))                                                                                                  \
  X(void, DeleteTensor, (TF_Tensor*))                                                                                  \
  X(int, TensorType, (const TF_Tensor*))                                                                               \
  X(int, NumDims, (const TF_Tensor*))                                                                                  \
  X(int64_t, Dim, (const TF_Tensor*, int))                                                                             \
  X(size_t, TensorByteSize, (const TF_Tensor*))                                                                        \
  X(void*, TensorData, (const TF_Tensor*))                                                                             \
  X(TF_KernelBuilder*, NewKernelBuilder,                                                                               \
    (const char* op, const char* device, void* (*create)(TF_OpKernelConstruction*),                                    \
     void (*compute)(void*, TF_OpKernelContext*), void (*destroy)(void*)))                                             \
  X(TF_KernelBuilder*, NewAsyncKernelBuilder,                                                                          \
    (const char* op, const char* device, void* (*create)(TF_OpKernelConstruction*),                                    \
     void (*compute)(void*, TF_OpKernelContext*, TF_AsyncOpKernelDoneCallback*), void (*destroy)(void*)))              \
  X(void, RegisterKernelBuilder, (const char* name, TF_KernelBuilder*, TF_Status*))                                    \
  X(int, NumInputs, (TF_OpKernelContext*))                                                                             \
  X(void, GetInput, (TF_OpKernelContext*, int, TF_Tensor**, TF_Status*))                                               \
  X(void, SetOutput, (TF_OpKernelContext*, int, const TF_Tensor*, TF_Status*))                                         \
  X(TF_Tensor*, AllocateOutput,                                                                                        \
    (TF_OpKernelContext*, int, int dtype, const int64_t* dims, int num_dims, size_t bytes, TF_Status*))                \
  X(TF_Tensor*, ForwardInputOrAllocateOutput,                                                                          \
    (TF_OpKernelContext*, const int* inputs, int num_inputs, int output, const int64_t* dims, int num_dims,            \
     int* forwarded, TF_Status*))                                                                                      \
  X(int64_t, GetIterId, (TF_OpKernelContext*))                                                                         \
  X(void, OpKernelContext_Failure, (TF_OpKernelContext*, TF_Status*))                                                  \
  X(void, OpKernelConstruction_Failure, (TF_OpKernelConstruction*, TF_Status*))                                        \
  X(StringView, OpKernelConstruction_GetName, (TF_OpKernelConstruction*))                                              \
  X(void, OpKernelConstruction_GetAttrSize,                                                                            \
    (TF_OpKernelConstruction*, const char*, int32_t* list_size, int32_t* total_size, TF_Status*))                      \
  X(void, OpKernelConstruction_GetAttrInt64, (TF_OpKernelConstruction*, const char*, int64_t*, TF_Status*))            \
  X(void, OpKernelConstruction_GetAttrBool, (TF_OpKernelConstruction*, const char*, unsigned char*, TF_Status*))       \
  X(void, OpKernelConstruction_GetAttrString, (TF_OpKernelConstruction*, const char*, char*, size_t most, TF_Status*)) \
  X(TF_OpDefinitionBuilder*, NewOpDefinitionBuilder, (const char*))                                                    \
  X(void, RegisterOpDefinition, (TF_OpDefinitionBuilder*, TF_Status*))                                                 \
  X(void, OpDefinitionBuilderAddAttr, (TF_OpDefinitionBuilder*, const char*))                                          \
  X(void, OpDefinitionBuilderAddInput, (TF_OpDefinitionBuilder*, const char*))                                         \
  X(void, OpDefinitionBuilderAddOutput, (TF_OpDefinitionBuilder*, const char*))                                        \
  X(void, OpDefinitionBuilderSetIsStateful, (TF_OpDefinitionBuilder*, bool))                                           \
  X(void, OpDefinitionBuilderSetShapeInferenceFunction, (TF_OpDefinitionBuilder*, ShapeFunction))                      \
  X(int64_t, ShapeInferenceContextNumInputs, (TF_ShapeInferenceContext*))                                              \
  X(TF_ShapeHandle*, NewShapeHandle, ())                                                                               \
  X(void, DeleteShapeHandle, (TF_ShapeHandle*))                                                                        \
  X(void, ShapeInferenceContextGetInput, (TF_ShapeInferenceContext*, int, TF_ShapeHandle*, TF_Status*))                \
  X(void, ShapeInferenceContextSetOutput, (TF_ShapeInferenceContext*, int, TF_ShapeHandle*, TF_Status*))               \
  X(TF_ShapeHandle*, ShapeInferenceContextScalar, (TF_ShapeInferenceContext*))                                         \
  X(TF_ShapeHandle*, ShapeInferenceContextVectorFromSize, (TF_ShapeInferenceContext*, size_t))                         \
  X(int, ShapeInferenceContextRankKnown, (TF_ShapeInferenceContext*, TF_ShapeHandle*))                                 \
  X(void, ShapeInferenceContextWithRankAtLeast,                                                                        \
    (TF_ShapeInferenceContext*, TF_ShapeHandle*, int64_t, TF_ShapeHandle* result, TF_Status*))                         \
  X(void, ShapeInferenceContextSubshape,                                                                               \
    (TF_ShapeInferenceContext*, TF_ShapeHandle*, int64_t start, int64_t end, TF_ShapeHandle* result, TF_Status*))      \
  X(void, ShapeInferenceContextConcatenateShapes,                                                                      \
    (TF_ShapeInferenceContext*, TF_ShapeHandle*, TF_ShapeHandle*, TF_ShapeHandle * result, TF_Status*))

struct TensorFlow {
#define HVD_DECLARE(result, name, arguments) result(*name) arguments = nullptr;
  HVD_TENSORFLOW_FUNCTIONS(HVD_DECLARE)
#undef HVD_DECLARE
};

extern const TensorFlow& tf;

// Why the operations do not work with the loaded TensorFlow, or an empty string. Complete when this library is loaded.
[[nodiscard]] const std::string& problem();
void note_problem(const std::string& problem);

class Status {
 public:
  Status() : status_(tf.NewStatus()) {}
  Status(const Status&) = delete;
  Status& operator=(const Status&) = delete;
  ~Status() { tf.DeleteStatus(status_); }

  [[nodiscard]] TF_Status* get() { return status_; }
  [[nodiscard]] bool ok() const { return tf.GetCode(status_) == kOk; }
  void set(StatusCode code, const std::string& message) { tf.SetStatus(status_, code, message.c_str()); }

 private:
  TF_Status* status_;
};

}  // namespace hvd::tensorflow
