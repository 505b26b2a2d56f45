// Random programs that repeat a step, so that names are known and announced by their numbers, and leave it at random
// places: results and errors are those of a program that repeats nothing.
#include <algorithm>
#include <random>

#include "engine/engine.h"
#include "testing/array.h"
#include "testing/check.h"
#include "testing/world.h"

namespace hvd::testing {
namespace {

constexpr Duration kPatience = std::chrono::seconds(30);
constexpr OpKind kKinds[] = {OpKind::kAllreduce, OpKind::kBroadcast, OpKind::kAllgather};
constexpr int64_t kCounts[] = {1, 40, 900, 3000, 20'000};

// An operation of all ranks, in one step.
struct Planned {
  std::string name;
  OpKind kind = OpKind::kAllreduce;
  int64_t count = 1;
  int root = 0;
  int guilty = -1;  // the rank that gives another dtype
};

struct Step {
  std::vector<Planned> operations;
  bool blocking = false;  // each is waited for before the next one is submitted
};

class Program {
 public:
  Program(unsigned seed, int size) : random_(seed), size_(size) {
    const int length = 3 + static_cast<int>(draw(4));
    for (int i = 0; i < length; ++i) repeated_.push_back(any("slot" + std::to_string(i)));
    blocking_ = draw(2) == 0;
    const int num_steps = kSanitized ? 12 : 40;
    for (int number = 0; number < num_steps; ++number) steps_.push_back(next(number));
  }

  [[nodiscard]] const std::vector<Step>& steps() const { return steps_; }

 private:
  uint64_t draw(uint64_t limit) { return random_() % limit; }

  Planned any(const std::string& name) {
    return {.name = name,
            .kind = kKinds[draw(3)],
            .count = kCounts[draw(5)],
            .root = static_cast<int>(draw(static_cast<uint64_t>(size_)))};
  }

  // The repeated step, or one that leaves it at one place.
  Step next(int number) {
    Step step{.operations = repeated_, .blocking = blocking_};
    const size_t at = draw(step.operations.size());
    Planned& operation = step.operations[at];
    switch (draw(12)) {
      case 0:
        operation = any(operation.name);
        break;
      case 1:
        operation.guilty = static_cast<int>(draw(static_cast<uint64_t>(size_)));
        break;
      case 2:
        step.operations.erase(step.operations.begin() + static_cast<std::ptrdiff_t>(at));
        break;
      case 3:
        step.operations.insert(step.operations.begin() + static_cast<std::ptrdiff_t>(at),
                               any("step" + std::to_string(number)));
        break;
      case 4:
        step.blocking = !step.blocking;
        break;
      case 5:  // from now on
        repeated_[at] = any("slot" + std::to_string(at));
        break;
      default:
        break;
    }
    return step;
  }

  std::mt19937 random_;
  int size_;
  std::vector<Planned> repeated_;
  bool blocking_ = false;
  std::vector<Step> steps_;
};

// An operation as one rank has submitted it.
class Submitted {
 public:
  Submitted(const Planned& planned, Engine& engine, bool waits_next)
      : planned_(planned),
        engine_(engine),
        input_(samples(engine.rank() == planned.guilty ? DType::kFloat64 : DType::kFloat32, ReduceOp::kSum,
                       engine.rank(), {planned.count})),
        output_(input_.dtype(), {planned.count}) {
    operation_ = make_operation(planned.kind, planned.name, {input_.view()}, {});
    if (planned.kind != OpKind::kAllgather) operation_->request.outputs = {output_.view()};
    if (planned.kind == OpKind::kBroadcast) operation_->request.root = planned.root;
    submit_to(engine, operation_, waits_next);
  }

  void finish() {
    REQUIRE(engine_.wait(*operation_, kPatience));
    const auto error = operation_->error();
    CHECK_EQ(error.has_value(), planned_.guilty >= 0);
    if (!error) {
      CHECK(is_right());
      return;
    }
    CHECK(error->kind() == ErrorKind::kMismatch);
    const std::string text = error->what();
    CHECK(contains(text, planned_.name) && contains(text, "rank " + std::to_string(planned_.guilty)));
  }

 private:
  [[nodiscard]] bool is_right() const {
    for (int64_t i = 0; i < planned_.count; i += 1 + planned_.count / 40) {
      if (planned_.kind != OpKind::kAllgather) {
        if (output_.get(i) != expected(planned_.root, i)) return false;
        continue;
      }
      for (int from = 0; from < engine_.size(); ++from) {
        const auto* gathered = operation_->result.arrays.at(0).data.get();
        if (element(DType::kFloat32, gathered, from * planned_.count + i) != expected(from, i)) return false;
      }
    }
    return true;
  }

  [[nodiscard]] double expected(int from, int64_t index) const {
    if (planned_.kind == OpKind::kAllreduce) return reduced(DType::kFloat32, ReduceOp::kSum, engine_.size(), index);
    return sample(DType::kFloat32, ReduceOp::kSum, from, index);
  }

  const Planned& planned_;
  Engine& engine_;
  Array input_;
  Array output_;
  std::shared_ptr<Operation> operation_;
};

// Unless it is blocking, each rank submits in an order of its own, and waits in another one.
void run_step(const Step& step, Engine& engine, std::mt19937& order) {
  std::vector<const Planned*> operations;
  for (const Planned& planned : step.operations) operations.push_back(&planned);
  if (!step.blocking) std::shuffle(operations.begin(), operations.end(), order);
  std::vector<std::unique_ptr<Submitted>> submitted;
  for (const Planned* planned : operations) {
    submitted.push_back(std::make_unique<Submitted>(*planned, engine, step.blocking));
    if (step.blocking) submitted.back()->finish();
  }
  if (step.blocking) return;
  std::shuffle(submitted.begin(), submitted.end(), order);
  for (const auto& each : submitted) each->finish();
}

}  // namespace

TEST("engine: random programs leave the step that they repeat at random places") {
  const unsigned num_programs = kSanitized ? 4 : 24;
  for (unsigned seed = 0; seed < num_programs; ++seed) {
    const int size = 2 + static_cast<int>(seed % 4);
    const Program program(seed, size);
    World world(size, {}, seed % 3 == 2 ? Wire::kSockets : Wire::kMemory);
    world.run([&](int rank) {
      std::mt19937 order(seed * 100 + static_cast<unsigned>(rank));
      for (const Step& step : program.steps()) run_step(step, world.engine(rank), order);
    });
    for (int rank = 0; rank < size; ++rank) CHECK(world.engine(rank).statistics().announced_by_id > 10);
  }
}

}  // namespace hvd::testing
