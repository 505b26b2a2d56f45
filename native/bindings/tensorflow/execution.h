// One run of a collective: from TensorFlow's call of the kernel to the call that says that it is done.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bindings/tensorflow/attributes.h"
#include "bindings/tensorflow/done_callback.h"
#include "bindings/tensorflow/job.h"
#include "bindings/tensorflow/tensors.h"

namespace hvd::tensorflow {

// Keeps the tensors until the engine has done with their memory. An operation of a graph is ended by the engine's
// callback, so no thread of TensorFlow's waits for it, but for a moment if it is alone in its step: to drive the engine
// from there saves two switches between threads, and leaves the work on the core of each rank. An eager one is waited
// for where it is called; if a signal ends that wait, the tensors still stay until the callback.
class Execution : public std::enable_shared_from_this<Execution> {
 public:
  Execution(const Attributes& attributes, TF_OpKernelContext* context, const DoneCallback& done)
      : attributes_(attributes), eager_(attributes.eager), context_(context), done_(done) {}
  Execution(const Execution&) = delete;
  Execution& operator=(const Execution&) = delete;
  ~Execution();

  void start();

 private:
  [[nodiscard]] bool find_members();
  [[nodiscard]] bool hold_inputs();
  [[nodiscard]] bool allocate_outputs();
  [[nodiscard]] bool forward_or_allocate(int index);
  [[nodiscard]] bool allocate_rows(int index);
  [[nodiscard]] bool read_splits();
  void prepare();
  void submit();
  void give_results();
  void give_owned_results();
  void give_integers(int index, const std::vector<int64_t>& values, bool scalar);
  [[nodiscard]] std::string name_of_run() const;
  [[nodiscard]] std::string who() const;
  void fail(StatusCode code, const std::string& message);
  void fail_with(Status& status);
  void end();

  const Attributes& attributes_;  // of the kernel, which lives until done_ was called
  const bool eager_;
  TF_OpKernelContext* const context_;
  const DoneCallback done_;
  const HvdInterface* interface_ = nullptr;
  std::shared_ptr<const Job> job_;
  Members members_;
  std::vector<HeldTensor> inputs_;
  std::vector<HeldTensor> outputs_;
  std::vector<int64_t> splits_;
  HvdOperation* operation_ = nullptr;
  std::shared_ptr<Execution> kept_;  // itself, while the engine has its address
};

}  // namespace hvd::tensorflow
