// TensorFlow's tensors as the engine's buffers.
#pragma once

#include <memory>
#include <vector>

#include "base/dtype.h"
#include "bindings/c_interface.h"
#include "bindings/tensorflow/tf_interface.h"

namespace hvd::tensorflow {

// -1 if the other side does not have the type.
[[nodiscard]] int dtype_of(DataType type);
[[nodiscard]] DataType type_of(int dtype);

struct DeleteTensor {
  void operator()(TF_Tensor* tensor) const { tf.DeleteTensor(tensor); }
};
using TensorPtr = std::unique_ptr<TF_Tensor, DeleteTensor>;

// A tensor that this process holds a reference to, and its shape.
struct HeldTensor {
  TensorPtr tensor;
  std::vector<int64_t> shape;

  HeldTensor() = default;
  explicit HeldTensor(TF_Tensor* held);
  // Valid while this object is where it is.
  [[nodiscard]] HvdBuffer buffer() const;
};

// A tensor of memory that the engine allocated; takes over the reference that keeps it.
[[nodiscard]] TensorPtr adopt(const HvdInterface& interface, const HvdBuffer& memory, void* reference);

}  // namespace hvd::tensorflow
