#include "bindings/mxnet/operation.h"

#include "bindings/mxnet/ledger.h"

namespace hvd::mxnet {
namespace {

struct ReleaseTensor {
  void operator()(ManagedTensor* tensor) const { tensor->release(tensor); }
};
using TensorPtr = std::unique_ptr<ManagedTensor, ReleaseTensor>;

class Execution final : public kernels::Run {
 public:
  Execution(const Pushed& pushed, const OnComplete& on_complete)
      : Run(pushed.call), pushed_(pushed), on_complete_(on_complete) {}

 private:
  [[nodiscard]] bool hold_inputs(std::vector<int64_t>& /*splits*/) override {
    for (const ArrayPtr& array : pushed_.arrays) {
      ManagedTensor* tensor = nullptr;
      if (mx.NDArrayToDLPack(array.get(), &tensor) != 0) {
        fail({kernels::Trouble::kBadArgument,
              who() +
                  ": the array is in a layout of oneDNN's own, as weights are after a prediction; leave it in its "
                  "place and assign the result: array[:] = hvd." +
                  name_of(call().kind) + "(array, ...)"});
        return false;
      }
      tensors_.emplace_back(tensor);
    }
    return true;
  }

  [[nodiscard]] bool allocate_like_input(int /*index*/) override { return true; }
  [[nodiscard]] bool allocate(int /*index*/, const std::vector<int64_t>& /*shape*/) override { return true; }
  [[nodiscard]] std::vector<HvdBuffer> inputs() const override { return buffers(); }
  [[nodiscard]] std::vector<HvdBuffer> outputs() const override { return buffers(); }
  void give_result(int /*index*/, const HvdBuffer& /*memory*/, void* /*reference*/) override {}
  void give_integers(int /*index*/, const std::vector<int64_t>& /*values*/, bool /*scalar*/) override {}

  void fail(const kernels::Failure& failure) override {
    error_ = failure.text;
    ledger().failed(failure);
  }

  // MXNet only queues what follows, and may delete what was pushed.
  void end() override {
    tensors_.clear();
    complete(on_complete_, error_);
  }
  void leave() override { end(); }

  [[nodiscard]] std::vector<HvdBuffer> buffers() const {
    std::vector<HvdBuffer> list;
    for (size_t i = 0; i < tensors_.size(); ++i) {
      const Tensor& tensor = tensors_[i]->tensor;
      HvdBuffer buffer = {};
      buffer.data = static_cast<char*>(tensor.data) + tensor.byte_offset;
      buffer.dtype = static_cast<int32_t>(pushed_.dtypes[i]);
      buffer.num_dims = tensor.num_dims;
      buffer.shape = tensor.shape;
      list.push_back(buffer);
    }
    return list;
  }

  const Pushed& pushed_;
  const OnComplete on_complete_;
  std::vector<TensorPtr> tensors_;
  std::string error_;
};

}  // namespace

void execute(const Pushed& pushed, const OnComplete& on_complete) {
  std::make_shared<Execution>(pushed, on_complete)->start();
}

}  // namespace hvd::mxnet
