// A collective as a custom call of XLA's: one run of it.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "bindings/jax/attributes.h"
#include "bindings/jax/xla_interface.h"
#include "bindings/kernels/call.h"

namespace hvd::jax {

// It comes before Run, which refers to the call.
struct HeldAttributes {
  Attributes attributes;
};

class Execution final : private HeldAttributes, public kernels::Run {
 public:
  Execution(Attributes&& given, const XlaCallFrame& frame);

  Execution(const Execution&) = delete;
  Execution& operator=(const Execution&) = delete;
  ~Execution() override;

  // Behind start(): returns the error if the operation has ended with one, or leaves a future if it goes on.
  [[nodiscard]] XlaError* outcome(XlaCallFrame& frame);

 private:
  struct Result {
    int index;
    HvdBuffer memory;
    void* reference;
  };

  [[nodiscard]] bool hold_inputs(std::vector<int64_t>& splits) override;
  [[nodiscard]] bool allocate_like_input(int /*index*/) override { return true; }
  [[nodiscard]] bool allocate(int index, const std::vector<int64_t>& shape) override;
  [[nodiscard]] std::vector<HvdBuffer> inputs() const override { return inputs_; }
  [[nodiscard]] std::vector<HvdBuffer> outputs() const override { return outputs_; }
  void give_result(int index, const HvdBuffer& memory, void* reference) override {
    results_.push_back({index, memory, reference});
  }
  void give_integers(int /*index*/, const std::vector<int64_t>& /*values*/, bool /*scalar*/) override {}
  void fail(const kernels::Failure& failure) override;
  void end() override;
  void leave() override { end(); }

  [[nodiscard]] bool refuse(const std::string& text);
  void copy_results();
  [[nodiscard]] XlaError* error() const;
  static void complete(std::shared_ptr<Execution> execution);

  const XlaApi* const api_;
  std::vector<HvdBuffer> inputs_;
  std::vector<HvdBuffer> outputs_;
  double weight_ = 1.0;
  bool has_unknown_dtype_ = false;
  std::vector<Result> results_;
  std::string text_;
  XlaCode code_ = kXlaInternal;

  std::mutex mutex_;
  bool has_ended_ = false;
  XlaFuture* future_ = nullptr;
};

// Of this process.
[[nodiscard]] int64_t num_started();
[[nodiscard]] int64_t num_ended();

}  // namespace hvd::jax
