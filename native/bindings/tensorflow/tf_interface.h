// What we use of TensorFlow's C interface, declared by hand: we are compiled against no version of TensorFlow. The
// functions are looked up in the library that the process has loaded already.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

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

// Name without "TF_", signature.
#define HVD_TENSORFLOW_FUNCTIONS(X)                                                                                    \
  X(NewStatus, TF_Status*())                                                                                           \
  X(DeleteStatus, void(TF_Status*))                                                                                    \
  X(SetStatus, void(TF_Status*, int code, const char*))                                                                \
  X(GetCode, int(const TF_Status*))                                                                                    \
  X(Message, const char*(const TF_Status*))                                                                            \
  X(NewTensor, TF_Tensor*(int dtype, const int64_t* dims, int num_dims, void* data, size_t bytes,                      \
                          void (*release)(void*, size_t, void*), void* argument))                                      \
  X(DeleteTensor, void(TF_Tensor*))                                                                                    \
  X(TensorType, int(const TF_Tensor*))                                                                                 \
  X(NumDims, int(const TF_Tensor*))                                                                                    \
  X(Dim, int64_t(const TF_Tensor*, int))                                                                               \
  X(TensorByteSize, size_t(const TF_Tensor*))                                                                          \
  X(TensorData, void*(const TF_Tensor*))                                                                               \
  X(NewKernelBuilder, TF_KernelBuilder*(const char* op, const char* device, void* (*create)(TF_OpKernelConstruction*), \
                                        void (*compute)(void*, TF_OpKernelContext*), void (*destroy)(void*)))          \
  X(NewAsyncKernelBuilder,                                                                                             \
    TF_KernelBuilder*(const char* op, const char* device, void* (*create)(TF_OpKernelConstruction*),                   \
                      void (*compute)(void*, TF_OpKernelContext*, TF_AsyncOpKernelDoneCallback*),                      \
                      void (*destroy)(void*)))                                                                         \
  X(RegisterKernelBuilder, void(const char* name, TF_KernelBuilder*, TF_Status*))                                      \
  X(NumInputs, int(TF_OpKernelContext*))                                                                               \
  X(GetInput, void(TF_OpKernelContext*, int, TF_Tensor**, TF_Status*))                                                 \
  X(SetOutput, void(TF_OpKernelContext*, int, const TF_Tensor*, TF_Status*))                                           \
  X(AllocateOutput,                                                                                                    \
    TF_Tensor*(TF_OpKernelContext*, int, int dtype, const int64_t* dims, int num_dims, size_t bytes, TF_Status*))      \
  X(ForwardInputOrAllocateOutput, TF_Tensor*(TF_OpKernelContext*, const int* inputs, int num_inputs, int output,       \
                                             const int64_t* dims, int num_dims, int* forwarded, TF_Status*))           \
  X(GetIterId, int64_t(TF_OpKernelContext*))                                                                           \
  X(OpKernelContext_Failure, void(TF_OpKernelContext*, TF_Status*))                                                    \
  X(OpKernelConstruction_Failure, void(TF_OpKernelConstruction*, TF_Status*))                                          \
  X(OpKernelConstruction_GetName, StringView(TF_OpKernelConstruction*))                                                \
  X(OpKernelConstruction_GetAttrSize,                                                                                  \
    void(TF_OpKernelConstruction*, const char*, int32_t* list_size, int32_t* total_size, TF_Status*))                  \
  X(OpKernelConstruction_GetAttrInt64, void(TF_OpKernelConstruction*, const char*, int64_t*, TF_Status*))              \
  X(OpKernelConstruction_GetAttrBool, void(TF_OpKernelConstruction*, const char*, unsigned char*, TF_Status*))         \
  X(OpKernelConstruction_GetAttrString, void(TF_OpKernelConstruction*, const char*, char*, size_t most, TF_Status*))   \
  X(NewOpDefinitionBuilder, TF_OpDefinitionBuilder*(const char*))                                                      \
  X(RegisterOpDefinition, void(TF_OpDefinitionBuilder*, TF_Status*))                                                   \
  X(OpDefinitionBuilderAddAttr, void(TF_OpDefinitionBuilder*, const char*))                                            \
  X(OpDefinitionBuilderAddInput, void(TF_OpDefinitionBuilder*, const char*))                                           \
  X(OpDefinitionBuilderAddOutput, void(TF_OpDefinitionBuilder*, const char*))                                          \
  X(OpDefinitionBuilderSetIsStateful, void(TF_OpDefinitionBuilder*, bool))                                             \
  X(OpDefinitionBuilderSetShapeInferenceFunction, void(TF_OpDefinitionBuilder*, ShapeFunction))                        \
  X(ShapeInferenceContextNumInputs, int64_t(TF_ShapeInferenceContext*))                                                \
  X(NewShapeHandle, TF_ShapeHandle*())                                                                                 \
  X(DeleteShapeHandle, void(TF_ShapeHandle*))                                                                          \
  X(ShapeInferenceContextGetInput, void(TF_ShapeInferenceContext*, int, TF_ShapeHandle*, TF_Status*))                  \
  X(ShapeInferenceContextSetOutput, void(TF_ShapeInferenceContext*, int, TF_ShapeHandle*, TF_Status*))                 \
  X(ShapeInferenceContextScalar, TF_ShapeHandle*(TF_ShapeInferenceContext*))                                           \
  X(ShapeInferenceContextVectorFromSize, TF_ShapeHandle*(TF_ShapeInferenceContext*, size_t))                           \
  X(ShapeInferenceContextRankKnown, int(TF_ShapeInferenceContext*, TF_ShapeHandle*))                                   \
  X(ShapeInferenceContextWithRankAtLeast,                                                                              \
    void(TF_ShapeInferenceContext*, TF_ShapeHandle*, int64_t, TF_ShapeHandle* result, TF_Status*))                     \
  X(ShapeInferenceContextSubshape,                                                                                     \
    void(TF_ShapeInferenceContext*, TF_ShapeHandle*, int64_t start, int64_t end, TF_ShapeHandle* result, TF_Status*))  \
  X(ShapeInferenceContextConcatenateShapes,                                                                            \
    void(TF_ShapeInferenceContext*, TF_ShapeHandle*, TF_ShapeHandle*, TF_ShapeHandle * result, TF_Status*))

struct TensorFlow {
#define HVD_DECLARE(name, signature) std::add_pointer_t<signature> name = nullptr;
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
