#include "bindings/tensorflow/tensors.h"

#include <array>
#include <utility>

namespace hvd::tensorflow {
namespace {

constexpr std::array<std::pair<DataType, DType>, kNumDTypes> kTypes = {{{1, DType::kFloat32},
                                                                        {2, DType::kFloat64},
                                                                        {3, DType::kInt32},
                                                                        {4, DType::kUInt8},
                                                                        {5, DType::kInt16},
                                                                        {6, DType::kInt8},
                                                                        {9, DType::kInt64},
                                                                        {10, DType::kBool},
                                                                        {14, DType::kBFloat16},
                                                                        {17, DType::kUInt16},
                                                                        {19, DType::kFloat16},
                                                                        {22, DType::kUInt32},
                                                                        {23, DType::kUInt64}}};

struct Memory {
  const HvdInterface& interface;
  void* reference;
};

void release(void* /*data*/, size_t /*bytes*/, void* argument) {
  const std::unique_ptr<Memory> memory(static_cast<Memory*>(argument));
  memory->interface.release_memory(memory->reference);
}

}  // namespace

int dtype_of(DataType type) {
  for (const auto& [known, dtype] : kTypes) {
    if (known == type) return static_cast<int>(dtype);
  }
  return -1;
}

DataType type_of(int dtype) {
  for (const auto& [type, known] : kTypes) {
    if (static_cast<int>(known) == dtype) return type;
  }
  return -1;
}

HeldTensor::HeldTensor(TF_Tensor* held) : tensor(held) {
  for (int i = 0; i < tf.NumDims(held); ++i) shape.push_back(tf.Dim(held, i));
}

HvdBuffer HeldTensor::buffer() const {
  HvdBuffer buffer = {};
  buffer.data = tf.TensorData(tensor.get());
  buffer.dtype = dtype_of(tf.TensorType(tensor.get()));
  buffer.num_dims = static_cast<int32_t>(shape.size());
  buffer.shape = shape.data();
  return buffer;
}

TensorPtr adopt(const HvdInterface& interface, const HvdBuffer& memory, void* reference) {
  int64_t count = 1;
  for (int i = 0; i < memory.num_dims; ++i) count *= memory.shape[i];
  const size_t bytes = static_cast<size_t>(count) * size_of(static_cast<DType>(memory.dtype));
  return TensorPtr(tf.NewTensor(type_of(memory.dtype), memory.shape, memory.num_dims, memory.data, bytes, &release,
                                new Memory{interface, reference}));
}

}  // namespace hvd::tensorflow
