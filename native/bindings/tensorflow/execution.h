// One run of a collective, as TensorFlow's kernels do it.
#pragma once

#include <string>
#include <vector>

#include "bindings/kernels/call.h"
#include "bindings/tensorflow/done_callback.h"
#include "bindings/tensorflow/tensors.h"

namespace hvd::tensorflow {

[[nodiscard]] StatusCode code_of(const kernels::Failure& failure);

// An operation of a graph is ended by the engine's callback, so no thread of TensorFlow's waits for it, but for a
// moment if it is alone in its step: to drive the engine from there saves two switches between threads, and leaves the
// work on the core of each rank. An eager one is waited for where it is called.
class Execution final : public kernels::Run {
 public:
  // `call` is the kernel, which lives until `done` was called.
  Execution(const kernels::Call& call, TF_OpKernelContext* context, const DoneCallback& done)
      : Run(call), context_(context), done_(done) {}

 private:
  [[nodiscard]] bool hold_inputs(std::vector<int64_t>& splits) override;
  [[nodiscard]] bool allocate_like_input(int index) override;
  [[nodiscard]] bool allocate(int index, const std::vector<int64_t>& shape) override;
  [[nodiscard]] std::vector<HvdBuffer> inputs() const override;
  [[nodiscard]] std::vector<HvdBuffer> outputs() const override;
  [[nodiscard]] std::string name_suffix() const override;
  void give_result(int index, const HvdBuffer& memory, void* reference) override;
  void give_integers(int index, const std::vector<int64_t>& values, bool scalar) override;
  void fail(const kernels::Failure& failure) override;
  void end() override;
  void leave() override;

  [[nodiscard]] bool read_splits(std::vector<int64_t>& splits);
  [[nodiscard]] bool succeeded(Status& status);

  TF_OpKernelContext* const context_;
  const DoneCallback done_;
  std::vector<HeldTensor> inputs_;
  std::vector<HeldTensor> outputs_;
};

}  // namespace hvd::tensorflow
