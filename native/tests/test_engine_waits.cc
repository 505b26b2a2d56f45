// How long a rank has waited for others: what it could not have used for anything else.
#include <chrono>
#include <deque>

#include "engine/engine.h"
#include "testing/array.h"
#include "testing/check.h"
#include "testing/manual_clock.h"
#include "testing/world.h"

namespace hvd::testing {
namespace {

using std::chrono::seconds;

// Two ranks that sum on a clock that only the test moves.
class Waits {
 public:
  Waits() : world_(2, options(clock_)) {}

  std::shared_ptr<Operation> submit(int rank, const std::string& name) {
    arrays_.push_back(samples(DType::kFloat32, ReduceOp::kSum, rank, {3}));
    auto operation = make_allreduce(name, {arrays_.back().view()}, {arrays_.back().view()});
    world_.engine(rank).submit(operation);
    return operation;
  }
  void pass(seconds time) { clock_->advance(time); }
  void finish(int rank, const std::shared_ptr<Operation>& operation) {
    while (!world_.engine(rank).wait(*operation, seconds(1))) {
    }
  }
  [[nodiscard]] seconds waited(int rank) {
    return std::chrono::duration_cast<seconds>(std::chrono::nanoseconds(world_.engine(rank).statistics().waited_ns));
  }

 private:
  static EngineOptions options(const std::shared_ptr<ManualClock>& clock) {
    EngineOptions options;
    options.clock = clock;
    options.stall_check_time = Duration::zero();
    return options;
  }

  std::shared_ptr<ManualClock> clock_ = std::make_shared<ManualClock>();
  std::deque<Array> arrays_;
  World world_;
};

TEST("waits: who comes first waits for who comes last, and not the other way round") {
  Waits waits;
  const auto first = waits.submit(0, "x");
  waits.pass(seconds(7));
  const auto last = waits.submit(1, "x");
  waits.finish(0, first);
  waits.finish(1, last);
  CHECK_EQ(waits.waited(0).count(), 7);
  CHECK_EQ(waits.waited(1).count(), 0);
}

TEST("waits: a rank that goes on submitting does not wait until it has submitted its last") {
  Waits waits;
  std::vector<std::shared_ptr<Operation>> operations;
  for (const char* name : {"a", "b", "c"}) {
    operations.push_back(waits.submit(0, name));
    waits.pass(seconds(2));  // as a backward pass computes the next gradient
  }
  waits.pass(seconds(5));
  for (const char* name : {"a", "b", "c"}) waits.finish(1, waits.submit(1, name));
  for (const auto& operation : operations) waits.finish(0, operation);
  CHECK_EQ(waits.waited(0).count(), 7);
  CHECK_EQ(waits.waited(1).count(), 0);
}

TEST("waits: what ends behind a rank that computes counts for nothing") {
  Waits waits;
  const auto slow = waits.submit(0, "a");
  waits.pass(seconds(3));
  const auto newest = waits.submit(0, "b");
  waits.finish(1, waits.submit(1, "a"));
  waits.finish(0, slow);
  CHECK_EQ(waits.waited(0).count(), 0);
  waits.pass(seconds(4));
  waits.finish(1, waits.submit(1, "b"));
  waits.finish(0, newest);
  CHECK_EQ(waits.waited(0).count(), 4);
}

TEST("waits: the rest that ends after the newest counts once") {
  Waits waits;
  const auto oldest = waits.submit(0, "a");
  const auto newest = waits.submit(0, "b");
  waits.pass(seconds(1));
  waits.finish(1, waits.submit(1, "b"));
  waits.finish(0, newest);
  CHECK_EQ(waits.waited(0).count(), 1);
  waits.pass(seconds(2));
  waits.finish(1, waits.submit(1, "a"));
  waits.finish(0, oldest);
  CHECK_EQ(waits.waited(0).count(), 3);
}

}  // namespace
}  // namespace hvd::testing
