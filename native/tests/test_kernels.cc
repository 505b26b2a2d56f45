// A kernel of an imaginary framework, over what kernels of real ones are made of: several jobs in one process, names,
// shares of rows, results of the engine's, and errors.
#include <condition_variable>
#include <mutex>

#include "bindings/c_reference.h"
#include "bindings/kernels/call.h"
#include "bindings/kernels/numbers.h"
#include "testing/check.h"
#include "testing/world.h"

namespace hvd::testing {
namespace {

using kernels::Call;
using kernels::Failure;
using kernels::Trouble;

struct Tensor {
  mutable std::vector<float> values;  // an HvdBuffer serves inputs and outputs alike
  std::vector<int64_t> shape;

  [[nodiscard]] HvdBuffer buffer() const {
    HvdBuffer buffer = {};
    buffer.data = values.data();
    buffer.dtype = static_cast<int32_t>(DType::kFloat32);
    buffer.num_dims = static_cast<int32_t>(shape.size());
    buffer.shape = shape.data();
    return buffer;
  }
};

// What the framework has of a run in the end.
struct Outcome {
  std::vector<Tensor> outputs;
  std::vector<int64_t> integers;
  std::optional<Failure> failure;
  bool ended = false;

  std::mutex mutex;
  std::condition_variable changed;
  void wait() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return ended; });
  }
};

class PlainRun final : public kernels::Run {
 public:
  PlainRun(const Call& call, std::vector<Tensor> given, std::vector<int64_t> splits, std::shared_ptr<Outcome> outcome)
      : Run(call), given_(std::move(given)), splits_(std::move(splits)), outcome_(std::move(outcome)) {}

 private:
  bool hold_inputs(std::vector<int64_t>& splits) override {
    splits = splits_;
    return true;
  }
  bool allocate_like_input(int index) override { return allocate(index, given_[static_cast<size_t>(index)].shape); }
  bool allocate(int /*index*/, const std::vector<int64_t>& shape) override {
    taken_.push_back({std::vector<float>(static_cast<size_t>(num_elements(shape))), shape});
    return true;
  }
  static std::vector<HvdBuffer> buffers_of(const std::vector<Tensor>& tensors) {
    std::vector<HvdBuffer> buffers;
    for (const Tensor& tensor : tensors) buffers.push_back(tensor.buffer());
    return buffers;
  }
  std::vector<HvdBuffer> inputs() const override { return buffers_of(given_); }
  std::vector<HvdBuffer> outputs() const override { return buffers_of(taken_); }
  void give_result(int /*index*/, const HvdBuffer& memory, void* reference) override {
    const std::vector<int64_t> shape(memory.shape, memory.shape + memory.num_dims);
    const auto* data = static_cast<const float*>(memory.data);
    taken_.push_back({std::vector<float>(data, data + num_elements(shape)), shape});
    interface().release_memory(reference);
  }
  void give_integers(int /*index*/, const std::vector<int64_t>& values, bool /*scalar*/) override {
    outcome_->integers = values;
  }
  void fail(const Failure& failure) override { outcome_->failure = failure; }
  void end() override { leave(); }
  void leave() override {
    const std::lock_guard lock(outcome_->mutex);
    outcome_->outputs = std::move(taken_);
    outcome_->ended = true;
    outcome_->changed.notify_all();
  }

  std::vector<Tensor> given_;
  std::vector<Tensor> taken_;
  std::vector<int64_t> splits_;
  std::shared_ptr<Outcome> outcome_;
};

std::shared_ptr<Outcome> run(const Call& call, std::vector<Tensor> given, std::vector<int64_t> splits = {}) {
  auto outcome = std::make_shared<Outcome>();
  std::make_shared<PlainRun>(call, std::move(given), std::move(splits), outcome)->start();
  outcome->wait();
  return outcome;
}

// Ranks of one world as the jobs 1, 2, ... of this process.
class Jobs {
 public:
  explicit Jobs(World& world) : world_(world) {
    for (int rank = 0; rank < world.size(); ++rank) {
      const std::shared_ptr<Engine> engine(std::shared_ptr<Engine>(), &world.engine(rank));
      auto job =
          std::make_shared<kernels::Job>(bindings::c_interface(), bindings::refer_to(engine), rank, rank, world.size());
      std::vector<int> ranks;
      for (int each = 0; each < world.size(); ++each) ranks.push_back(each);
      job->set_process_set(0, {.engine_id = 0, .ranks = ranks, .set_rank = rank});
      kernels::jobs().begin(rank + 1, std::move(job));
    }
  }
  Jobs(const Jobs&) = delete;
  Jobs& operator=(const Jobs&) = delete;
  ~Jobs() {
    for (int rank = 0; rank < world_.size(); ++rank) kernels::jobs().end(rank + 1);
  }

 private:
  World& world_;
};

Call call_of(OpKind kind, int rank, const std::string& name, kernels::Waits waits = kernels::Waits::kNot) {
  Call call;
  call.kind = kind;
  call.name = name;
  call.job = rank + 1;
  call.waits = waits;
  return call;
}

TEST("kernels: each job of a process has its own engine, whatever way its kernels wait") {
  World world(2);
  const Jobs jobs(world);
  for (const kernels::Waits waits : {kernels::Waits::kNot, kernels::Waits::kBriefly, kernels::Waits::kUntilDone}) {
    world.run([&](int rank) {
      const Call call = call_of(OpKind::kAllreduce, rank, "x", waits);
      const auto outcome = run(call, {{{1.0F + static_cast<float>(rank), 5.0F}, {2}}});
      REQUIRE(!outcome->failure);
      CHECK(outcome->outputs.at(0).values == (std::vector<float>{3.0F, 10.0F}));
    });
  }
}

TEST("kernels: weights and priorities reach the engine") {
  World world(2);
  const Jobs jobs(world);
  world.run([&](int rank) {
    Call call = call_of(OpKind::kAllreduce, rank, "mean");
    call.reduce_op = ReduceOp::kAverage;
    call.weight = rank == 0 ? 3.0 : 1.0;
    call.priority = 7;
    const auto outcome = run(call, {{{rank == 0 ? 1.0F : 5.0F}, {1}}});
    REQUIRE(!outcome->failure);
    CHECK_EQ(outcome->outputs.at(0).values.at(0), 2.0F);
  });
}

TEST("kernels: rows are shared as the engine shares them, and results of the engine's come with their shape") {
  World world(2);
  const Jobs jobs(world);
  world.run([&](int rank) {
    const Tensor three{{1, 2, 3, 4, 5, 6}, {3, 2}};
    const auto scattered = run(call_of(OpKind::kReducescatter, rank, "rows"), {three});
    REQUIRE(!scattered->failure);
    CHECK(scattered->outputs.at(0).shape == (std::vector<int64_t>{rank == 0 ? 2 : 1, 2}));
    const auto gathered = run(call_of(OpKind::kAllgather, rank, "all"), scattered->outputs);
    REQUIRE(!gathered->failure);
    CHECK(gathered->outputs.at(0).shape == three.shape);
    CHECK(gathered->outputs.at(0).values == (std::vector<float>{2, 4, 6, 8, 10, 12}));
    const auto exchanged = run(call_of(OpKind::kAlltoall, rank, "splits"), {three}, {1, 2});
    REQUIRE(!exchanged->failure);
    CHECK(exchanged->integers == (rank == 0 ? std::vector<int64_t>{1, 1} : std::vector<int64_t>{2, 2}));
  });
}

TEST("kernels: what fails says which, why and where") {
  World world(2);
  const Jobs jobs(world);
  Call nowhere = call_of(OpKind::kAllreduce, 6, "x");
  CHECK(run(nowhere, {})->failure->trouble == Trouble::kNotInitialized);
  CHECK_EQ(run(nowhere, {})->failure->text, "job 7 of this process has ended, or never began");
  nowhere.job = 0;
  CHECK_EQ(run(nowhere, {})->failure->text, "Horovod has not been initialized; call hvd.init() first");
  Call unknown = call_of(OpKind::kAllgather, 0, "x");
  unknown.process_set = 4;
  CHECK_EQ(run(unknown, {})->failure->text, "allgather.x: process set 4 is not registered");
  Call product = call_of(OpKind::kReducescatter, 0, "x");
  product.reduce_op = ReduceOp::kProduct;
  CHECK(run(product, {})->failure->trouble == Trouble::kUnsupported);
  const auto scalar = run(call_of(OpKind::kAllgather, 0, "x"), {{{1}, {}}});
  CHECK(scalar->failure->trouble == Trouble::kEngine && scalar->failure->kind == ErrorKind::kUsage);
  CHECK(std::get<Failure>(kernels::answer(kernels::Question::kSize, 1, 4)).trouble == Trouble::kUnknownProcessSet);
  CHECK_EQ(std::get<int>(kernels::answer(kernels::Question::kRank, 2, 0)), 1);
  CHECK_EQ(std::get<int>(kernels::answer(kernels::Question::kIncluded, 9, 0)), kernels::kNotInitialized);
}

TEST("kernels: libraries of two versions of Horovod do not call each other") {
  HvdInterface interface = *bindings::c_interface();
  CHECK_EQ(kernels::mismatch_of(interface), "");
  interface.request_size -= 8;
  CHECK(kernels::mismatch_of(interface).find("in different ways; files of two versions") != std::string::npos);
  interface.version = 2;
  CHECK(kernels::mismatch_of(interface).find("but horovod._native speaks version 2") != std::string::npos);
}

}  // namespace
}  // namespace hvd::testing
