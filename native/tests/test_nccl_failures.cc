// What NCCL and the device do wrong is told within 2 s, with rank, tensor and cause, and nobody hangs.
#include <algorithm>
#include <chrono>
#include <thread>

#include "testing/check.h"
#include "testing/fake_nccl.h"

namespace hvd::testing {
namespace {

// Of what must happen within 2 s; sanitizers are slow.
constexpr double kSoon = kSanitized ? 6.0 : 2.0;

template <class Body>
std::string error_of(Body body) {
  try {
    body();
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::kInternal);
    return error.what();
  }
  return "no error";
}

class Stopwatch {
 public:
  [[nodiscard]] double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

void expect(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    std::string words = "\"";
    words.append(part).append("\" is not in: ").append(text);
    if (!contains(text, part)) report(__FILE__, __LINE__, words);
  }
}

// An allreduce in flight, and the memory of it.
struct Flight {
  Flight(NcclWorld& world, int rank, double prescale = 1.0)
      : memory(world.on_device(rank, std::vector<std::byte>(4000))), me(&world.rank(rank)) {
    Batch batch = world.batch(rank, DType::kFloat32);
    batch.prescale = prescale;
    batch.prescaled = prescale != 1.0;
    batch.inputs = batch.outputs = {{memory.data(), 1000}};
    batch.what = "allreduce.grad";
    execution = me->backend().execute(Collective::kAllreduce, std::move(batch));
  }
  [[nodiscard]] std::string error() {
    return error_of([&] { me->finish(*execution); });
  }

  DeviceBytes memory;
  NcclRank* me;
  std::unique_ptr<Execution> execution;
};

// Rank 1 of two fails in this way and says these words. Rank 0 is told, as by the engine, and goes on.
void check_told(const std::string& rule, const std::vector<std::string>& parts, double prescale = 1.0) {
  NcclWorld world(2, {.better_reason_time = std::chrono::milliseconds(20)});
  REQUIRE(world.nccl().configure(rule.c_str()) == 1);
  const Stopwatch watch;
  world.add_communicators();
  Flight other(world, 0, prescale);
  Flight flight(world, 1, prescale);
  expect(flight.error(), parts);
  CHECK(watch.seconds() < kSoon);
  world.run([&](int rank) { world.rank(rank).backend().give_up("rank 1 said so"); });
  CHECK(watch.seconds() < kSoon);
  expect(other.error(), {"rank 1 said so"});
  CHECK(flight.execution->done() && other.execution->done());  // the device lets go
  expect(Flight(world, 0).error(), {"rank 1 said so"});
}

TEST("nccl failures: a call that fails is told with rank, tensor, NCCL's words and likely causes") {
  check_told("fail:allreduce@1", {"rank 1 on host-1 on cuda:1: allreduce.grad: ncclAllReduce of NCCL 2.29.7 failed: ",
                                  "Likely: ", "NCCL_SOCKET_IFNAME", "NCCL_DEBUG=WARN"});
  check_told("fail:group_end@1", {"rank 1 on host-1", "allreduce.grad: ncclGroupEnd of NCCL 2.29.7 failed: "});
  check_told("fail:redop@1", {"rank 1 on host-1", "allreduce.grad: ncclRedOpCreatePreMulSum of NCCL"}, 0.5);
  check_told("fail:init@1", {"rank 1 on host-1", "the communicator: ncclCommInitRankConfig of NCCL"});
}

TEST("nccl failures: an asynchronous error is told, also while the communicator is made") {
  check_told("async_error:allreduce@1",
             {"rank 1 on host-1", "allreduce.grad: ", "of NCCL 2.29.7 failed: ", "the process of another rank ended"});
  check_told("async_error:init@1", {"rank 1 on host-1", "the communicator: ncclCommInitRankConfig of NCCL"});
}

TEST("nccl failures: two ranks on one GPU are told what to do") {
  NcclWorld world(2, {}, {1, 1});
  world.add_communicators();
  Flight flight(world, 0);
  expect(flight.error(), {"rank 0 on host-0 on cuda:1", "Duplicate GPU", "torch.cuda.set_device(hvd.local_rank())"});
}

TEST("nccl failures: a communicator that is not made in time is told with all ranks") {
  NcclWorld world(3, {.creation_time = std::chrono::milliseconds(300)});
  const Stopwatch watch;
  for (const int rank : {0, 2}) world.rank(rank).backend().add_communicator(world.spec(0, {0, 1, 2}, rank));
  Flight flight(world, 0);
  expect(flight.error(),
         {"rank 0 on host-0", "could not make a communicator of rank 0 on host-0, rank 1 on host-1, rank 2",
          "NCCL_SOCKET_IFNAME"});
  CHECK(watch.seconds() < kSoon);
}

TEST("nccl failures: an error of the device is told with its words") {
  NcclWorld world(2);
  world.add_communicators();
  Flight flight(world, 1);  // rank 0 comes late
  flight.me->advance_until(*flight.execution, [&] { return flight.execution->handed_over(); });
  const Stopwatch watch;
  world.cuda().fail_device(1, 700);
  expect(flight.error(),
         {"rank 1 on host-1 on cuda:1: allreduce.grad: ", "CUDA_ERROR_ILLEGAL_ADDRESS", "CUDA_LAUNCH_BLOCKING=1"});
  world.rank(1).backend().give_up("illegal address");
  CHECK(flight.execution->done());
  CHECK(watch.seconds() < kSoon);
  world.cuda().reset();  // or the memory can never be freed
}

// Of all that does not come back.
TEST("nccl failures: what hangs on the device is ended by giving up") {
  NcclWorld world(2);
  world.nccl().configure("hang:allreduce@1");
  world.add_communicators();
  Flight other(world, 0);
  Flight flight(world, 1);
  for (Flight* each : {&other, &flight})
    each->me->advance_until(*each->execution, [&] { return each->execution->handed_over(); });
  CHECK(!flight.execution->advance());
  CHECK(!flight.execution->done());
  const Stopwatch watch;
  world.run([&](int rank) { world.rank(rank).backend().give_up("rank 7 was lost"); });
  CHECK(watch.seconds() < kSoon);
  for (Flight* each : {&other, &flight}) {
    expect(each->error(), {"rank 7 was lost"});
    CHECK(each->execution->done());
  }
}

TEST("nccl failures: a rank that never comes is given up") {
  NcclWorld world(2);
  world.add_communicators();
  Flight flight(world, 0);
  flight.me->advance_until(*flight.execution, [&] { return flight.execution->handed_over(); });
  const Stopwatch watch;
  world.rank(0).backend().give_up("rank 1 was lost");
  CHECK(watch.seconds() < kSoon);
  expect(flight.error(), {"rank 1 was lost"});
  CHECK(flight.execution->done());
}

TEST("nccl failures: a call that does not return is ended by another thread") {
  NcclWorld world(2);
  world.nccl().configure("hang:group_end@0");
  world.add_communicators();
  Flight flight(world, 0);
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (world.nccl().calls("ncclGroupEnd") == 0 && std::chrono::steady_clock::now() < until) std::this_thread::yield();
  const Stopwatch watch;
  world.rank(0).backend().give_up("rank 1 was lost");
  CHECK(watch.seconds() < kSoon);
  expect(flight.error(), {"rank 1 was lost"});
  CHECK(flight.execution->done());
}

TEST("nccl failures: what cannot be ended is said to be in use, and nobody waits longer for it") {
  NcclWorld world(2);
  world.nccl().configure("hang:allreduce@1,hang:abort@1");
  world.add_communicators();
  Flight other(world, 0);
  Flight flight(world, 1);
  flight.me->advance_until(*flight.execution, [&] { return flight.execution->handed_over(); });
  const Stopwatch watch;
  world.run([&](int rank) { world.rank(rank).backend().give_up("rank 7 was lost"); });
  CHECK(watch.seconds() < kSoon + 0.5);
  expect(flight.error(), {"rank 7 was lost"});
  CHECK(!flight.execution->done());
  CHECK(other.execution->done());
  world.nccl().release();
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!flight.execution->done() && std::chrono::steady_clock::now() < until) std::this_thread::yield();
  CHECK(flight.execution->done());
}

TEST("nccl failures: the loss of a rank that NCCL notices is told later, as others know better who it was") {
  for (const bool known : {false, true}) {
    NcclWorld world(2);
    world.nccl().configure("peers:remote_error");
    world.add_communicators();
    world.run([&](int rank) { CHECK_EQ(Flight(world, rank).error(), "no error"); });
    Flight flight(world, 0);
    const Stopwatch watch;
    world.rank(1).backend().give_up("its process dies");
    if (known) {
      std::this_thread::sleep_for(std::chrono::milliseconds(200));  // NCCL has noticed by now
      CHECK(!flight.execution->done());
      world.rank(0).backend().give_up("rank 1 on host-1 was lost");
      expect(flight.error(), {"rank 1 on host-1 was lost"});
    } else {
      expect(flight.error(), {"rank 0 on host-0", "allreduce.grad", "the process of another rank ended"});
    }
    CHECK(watch.seconds() < kSoon);
  }
}

TEST("nccl failures: an end that hangs does not hold up the engine") {
  for (const char* rule : {"hang:finalize", "hang:destroy", "hang:finalize,hang:abort"}) {
    NcclWorld world(2);
    world.add_communicators();
    world.run([&](int rank) { CHECK_EQ(Flight(world, rank).error(), "no error"); });
    world.nccl().configure(rule);
    const Stopwatch watch;
    world.run([&](int rank) { world.rank(rank).end(); });
    CHECK(watch.seconds() < kSoon + 0.5);
    world.nccl().release();
  }
}

TEST("nccl failures: a rank may end before the others") {
  NcclWorld world(2);
  world.add_communicators();
  world.run([&](int rank) { CHECK_EQ(Flight(world, rank).error(), "no error"); });
  const Stopwatch watch;
  world.rank(0).end();
  CHECK(watch.seconds() < kSoon + 0.5);
  CHECK_EQ(world.end(), "");
}

TEST("nccl failures: what is dropped on its way leaves its memory alone then") {
  NcclWorld world(2);
  world.nccl().configure("hang:allreduce@0");
  world.add_communicators();
  Flight first(world, 0);
  Flight second(world, 1);
  first.me->advance_until(*first.execution, [&] { return first.execution->handed_over(); });
  const auto finished = first.execution->finished();
  CHECK(!finished->reached());
  std::thread release([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    world.nccl().release();
  });
  first.execution.reset();  // what the device does for a moment only is waited for
  CHECK(finished->reached());
  release.join();
  second.me->finish(*second.execution);

  Flight alone(world, 0);  // rank 1 never comes
  alone.me->advance_until(*alone.execution, [&] { return alone.execution->handed_over(); });
  const Stopwatch watch;
  alone.execution.reset();
  CHECK(watch.seconds() < kSoon + 1.0);
  expect(Flight(world, 0).error(), {"an operation was dropped"});
}

TEST("nccl failures: no unique id is an error with NCCL's words") {
  NcclWorld world(1);
  const std::string last = world.rank(0).backend().make_unique_id();
  const size_t number = last.find('-', last.find('/')) + 1;
  world.nccl().configure(("fail:unique_id:" + std::to_string(std::stoi(last.substr(number)) + 1)).c_str());
  expect(error_of([&] { static_cast<void>(world.rank(0).backend().make_unique_id()); }),
         {"ncclGetUniqueId of NCCL 2.29.7 failed: ", "NCCL_SOCKET_IFNAME"});
}

TEST("nccl failures: what NCCL was not prepared for is refused") {
  NcclWorld world(2);
  world.add_communicators();
  const auto refuse = [&](const std::function<void(Batch&)>& change) {
    Batch batch = world.batch(0, DType::kFloat32);
    change(batch);
    return error_of(
        [&] { static_cast<void>(world.rank(0).backend().execute(Collective::kAllreduce, std::move(batch))); });
  };
  expect(refuse([](Batch& batch) { batch.set = 5; }), {"allreduce.x: NCCL was given a batch"});
  expect(refuse([](Batch& batch) { batch.devices = {0, 3}; }), {"allreduce.x: NCCL was given a batch"});
  expect(refuse([](Batch& batch) { batch.dtype = DType::kInt16; }), {"allreduce.x: NCCL was given a type"});
  CHECK_EQ(world.end(), "");
}

TEST("nccl library: too old ones and damaged ones are not taken, and the next one is") {
  const FakeNccl nccl;
  const auto load = [](const std::vector<std::string>& names) {
    std::vector<std::string> paths;
    for (const std::string& name : names) paths.push_back(fake_gpu_library(name));
    return nccl::load_library(paths);
  };
  const auto text = [&](const std::string& name) -> std::string {
    try {
      static_cast<void>(load({name}));
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::kUsage);
      return error.what();
    }
    return "no error";
  };
  expect(text("libfake_nccl_old.so"), {"libfake_nccl_old.so: it is version 2.10.3, but at least 2.18.0 is needed"});
  expect(text("libfake_nccl_damaged.so"), {"libfake_nccl_damaged.so: it lacks ncclReduceScatter"});
  const auto next = load({"libfake_nccl_old.so", "libfake_nccl_2_22.so"});
  CHECK_EQ(next->name(), "NCCL 2.22.3");
  CHECK(!next->is_rccl);
  CHECK_EQ(next->warning, "");
  expect(nccl.library()->warning, {"NCCL 2.29.7 (", "libfake_nccl.so) has a known fault: ", "NCCL_PXN_DISABLE=1"});
}

}  // namespace
}  // namespace hvd::testing
