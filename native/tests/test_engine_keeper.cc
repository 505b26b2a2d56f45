// What keeps the memory of an operation is let go when the operation ends.
#include <atomic>
#include <latch>

#include "engine/engine.h"
#include "testing/array.h"
#include "testing/check.h"
#include "testing/world.h"

namespace hvd::testing {
namespace {

// A sum of this rank, and whether its memory is kept.
struct KeptSum {
  KeptSum(int rank, const std::string& name, int64_t count = 3)
      : array(samples(DType::kFloat32, ReduceOp::kSum, rank, {count})),
        operation(make_allreduce(name, {array.view()}, {array.view()})) {
    operation->request.keeper =
        Keeper(&is_kept, [](void* kept) { static_cast<std::atomic<bool>*>(kept)->store(false); });
  }
  KeptSum(const KeptSum&) = delete;
  KeptSum& operator=(const KeptSum&) = delete;
  ~KeptSum() = default;

  std::atomic<bool> is_kept{true};
  Array array;
  std::shared_ptr<Operation> operation;
};

TEST("engine keeper: it goes before the operation is done, out of order, and without another call") {
  for (const int64_t count : {int64_t{3}, int64_t{9000}}) {
    World world(2);
    std::latch looked(2);
    world.run([&](int rank) {
      const KeptSum lasting(rank, "lasting", count);
      if (rank == 0) world.engine(rank).submit(lasting.operation);
      for (int i = 0; i < 20; ++i) {
        const KeptSum brief(rank, "x", count);
        submit_to(world.engine(rank), brief.operation, i % 2 == 0);
        // Without driving: the engine's thread ends it.
        if (i % 2 == 0) CHECK(world.engine(rank).wait(*brief.operation, std::chrono::seconds(20)));
        if (i % 2 == 1) CHECK(brief.operation->wait_done(std::chrono::seconds(20)));
        CHECK(!brief.is_kept.load());
      }
      CHECK(lasting.is_kept.load());
      looked.arrive_and_wait();
      if (rank == 1) world.engine(rank).submit(lasting.operation);
      CHECK(lasting.operation->wait_done(std::chrono::seconds(20)));
      CHECK(!lasting.is_kept.load());
    });
  }
}

TEST("engine keeper: it goes with an operation that is refused or fails, and with its engine") {
  World world(2);
  std::latch looked(2);
  world.run([&](int rank) {
    KeptSum pending(rank, "pending" + std::to_string(rank));
    world.engine(rank).submit(pending.operation);
    KeptSum refused(rank, "pending" + std::to_string(rank));
    bool is_refused = false;
    try {
      world.engine(rank).submit(refused.operation);
    } catch (const Error& error) {
      is_refused = error.kind() == ErrorKind::kDuplicateName;
    }
    CHECK(is_refused);
    CHECK(refused.is_kept.load());
    refused.operation.reset();
    CHECK(!refused.is_kept.load());
    KeptSum wrong(rank, "wrong", 3 + rank);
    world.engine(rank).submit(wrong.operation);
    CHECK(wrong.operation->wait_done(std::chrono::seconds(20)));
    CHECK(wrong.operation->error().has_value());
    CHECK(!wrong.is_kept.load());
    CHECK(pending.is_kept.load());
    looked.arrive_and_wait();
    world.engine(rank).close("the test is over");
    CHECK(pending.operation->done());
    CHECK(!pending.is_kept.load());
  });
}

}  // namespace
}  // namespace hvd::testing
