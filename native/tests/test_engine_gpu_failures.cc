#include "tests/test_engine_gpu.h"

namespace hvd::testing {
namespace {

constexpr Gpus kBoth[] = {Gpus::kOurs, Gpus::kShared};
constexpr int64_t kCount = 3000;
constexpr Duration kPrompt = std::chrono::seconds(2);

std::shared_ptr<Operation> reduction(const std::string& name, const GpuTensor& tensor) {
  return make_allreduce(name, {tensor.view()}, {tensor.view()});
}

// What a rank hears: "fine", or the kind and text of its error.
template <class Body>
std::string outcome(Body body) {
  try {
    body();
  } catch (const Error& error) {
    return std::to_string(static_cast<int>(error.kind())) + " " + error.what();
  }
  return "fine";
}

std::string of_kind(ErrorKind kind) { return std::to_string(static_cast<int>(kind)) + " "; }

std::string try_sum(GpuWorld& world, int rank, const std::string& name, int64_t count = kCount) {
  return outcome([&] {
    const GpuTensor tensor = world.tensor(rank, DType::kFloat32, count, 1);
    world.run_operation(rank, reduction(name, tensor));
    CHECK_EQ(tensor.get(count - 1), static_cast<double>(world.ranks().size()));
  });
}

TEST("engine gpu: tensors of several devices in one operation are refused in plain words") {
  GpuWorld world(2, Gpus::kOurs);
  const GpuTensor tensor = world.tensor(0, DType::kFloat32, 4, 1);
  const GpuTensor other = world.tensor(1, DType::kFloat32, 4, 1);
  std::vector<float> on_cpu(4);
  const auto refusal = [&](const Buffer& a, const Buffer& b) {
    return outcome([&] { world.engine(0).submit(make_allreduce("x", {a, b}, {a, b})); });
  };
  CHECK_EQ(
      refusal(tensor.view(), view(on_cpu)),
      of_kind(ErrorKind::kUsage) +
          "x: all tensors of one operation must be on one device, but some are on cuda:0 and others on the CPU. Move "
          "them, or submit those of each device by themselves");
  CHECK(contains(refusal(tensor.view(), other.view()), "some are on cuda:0 and others on cuda:1"));
  Buffer nowhere = tensor.view();
  nowhere.device = 17;
  CHECK(contains(refusal(nowhere, nowhere), "there is no cuda:17"));
}

TEST("engine gpu: without a driver the caller hears what was tried, and the engine goes on") {
  FakeCuda cuda;
  EngineOptions options = gpu_options();
  options.gpu->driver_candidates = {"/no/libcuda.so.1"};
  const GpuTensor tensor(cuda, 0, samples(DType::kFloat32, ReduceOp::kSum, 0, {4}));
  for (const bool has_options : {true, false}) {
    World world(2, has_options ? options : EngineOptions());
    world.run([&](int rank) {
      const std::string heard = outcome([&] { submit_to(world.engine(rank), reduction("x", tensor), true); });
      CHECK(heard.starts_with(of_kind(ErrorKind::kUsage)));
      CHECK(
          contains(heard, has_options ? "/no/libcuda.so.1" : "x: its tensors are on cuda:0, but this engine was made"));
      std::vector<float> values(3, 1.0F);
      run_operation(world.engine(rank), make_allreduce("x", {view(values)}, {view(values)}));
      CHECK_EQ(values[0], 2.0F);
    });
  }
}

TEST("engine gpu: a mix of CPU and GPU is a mismatch on all ranks, and the name is free again") {
  GpuWorld world(2, Gpus::kOurs);
  world.ranks().run([&](int rank) {
    std::vector<float> on_cpu(kCount, 1.0F);
    const GpuTensor tensor = world.tensor(rank, DType::kFloat32, kCount, 1);
    const std::string heard = outcome([&] {
      const Buffer buffer = rank == 0 ? view(on_cpu) : tensor.view();
      run_operation(world.engine(rank), make_allreduce("x", {buffer}, {buffer}));
    });
    CHECK(heard.starts_with(of_kind(ErrorKind::kMismatch)));
    CHECK(contains(heard, "rank 0 sent allreduce(Sum) of float32 [3000]\n"));
    CHECK(contains(heard, "rank 1 sent allreduce(Sum) of float32 [3000] on a GPU"));
    CHECK_EQ(try_sum(world, rank, "x"), "fine");
  });
  CHECK_EQ(world.end(), "");
}

TEST("engine gpu: one rank without NCCL takes all to host memory, and one line says why") {
  Log log;
  EngineOptions options = gpu_options();
  options.log = log.sink();
  const auto adapt = [](int rank, EngineOptions& its) {
    if (rank == 1) its.gpu->nccl_candidates = {"/no/libnccl.so.2"};
  };
  {
    GpuWorld world(3, Gpus::kOurs, options, Wire::kMemory, {}, adapt);
    world.nccl().reset();
    world.ranks().run([&](int rank) {
      for (int step = 0; step < 3; ++step) CHECK_EQ(try_sum(world, rank, "x"), "fine");
    });
    CHECK_EQ(world.engine(0).statistics().nccl_batches, 0U);
  }
  REQUIRE(log.size() == 1);
  CHECK(contains(log.lines[0], "tensors on GPUs of process set 0 (cuda:0, cuda:1, cuda:2) go through host memory"));
  CHECK(contains(log.lines[0], "rank 1 cannot use NCCL: "));
  CHECK(contains(log.lines[0], "/no/libnccl.so.2"));
}

TEST("engine gpu: ranks that would cut other chunks are told so, and do not wait for each other") {
  const auto adapt = [](int rank, EngineOptions& its) {
    if (rank == 1) its.gpu->staged.chunk_bytes = 8192;
  };
  GpuWorld world(2, Gpus::kShared, gpu_options(), Wire::kMemory, {}, adapt);
  world.ranks().run([&](int rank) {
    const std::string heard = try_sum(world, rank, "x");
    CHECK(contains(heard, "x: tensors on GPUs of process set 0"));
    CHECK(contains(heard, "rank 1 has HOROVOD_GPU_CHUNK_SIZE=8192, but rank 0 has 4096"));
  });
}

TEST("engine gpu: ranks that share a GPU are named in one line; who insists on NCCL gets that as an error") {
  Log log;
  for (const GpuOperations operations : {GpuOperations::kAuto, GpuOperations::kStaged, GpuOperations::kNccl}) {
    EngineOptions options = gpu_options(operations);
    options.log = log.sink();
    GpuWorld world(2, Gpus::kShared, options);
    world.ranks().run([&](int rank) {
      const std::string heard = try_sum(world, rank, "x");
      if (operations != GpuOperations::kNccl) {
        CHECK(heard == "fine");
        return;
      }
      CHECK(heard.starts_with(of_kind(ErrorKind::kUsage)));
      CHECK(contains(heard,
                     "the settings of rank 0 want NCCL, which cannot be used: rank 0 and rank 1 use the same GPU"));
    });
  }
  REQUIRE(log.size() == 2);
  CHECK(contains(log.lines[0], "slower than NCCL: rank 0 and rank 1 use the same GPU"));
  CHECK(contains(log.lines[1], "go through host memory: the settings of rank 0 say so"));
}

TEST("engine gpu: a deterministic engine reduces on the host, and moves by NCCL") {
  EngineOptions options = gpu_options();
  options.deterministic = true;
  GpuWorld world(2, Gpus::kOurs, options);
  world.ranks().run([&](int rank) {
    CHECK_EQ(try_sum(world, rank, "x"), "fine");
    const GpuTensor state = world.tensor(rank, DType::kFloat32, kCount, rank);
    auto broadcast = make_operation(OpKind::kBroadcast, "state", {state.view()}, {state.view()});
    broadcast->request.root = 1;
    world.run_operation(rank, broadcast);
    CHECK_EQ(state.get(0), 1.0);
  });
  CHECK_EQ(world.engine(0).statistics().nccl_batches, 1U);
  CHECK_EQ(world.end(), "");
}

TEST("engine gpu: operations of the CPU over MPI, and ranks on several hosts") {
  for (const Wire wire : {Wire::kMpi, Wire::kHosts, Wire::kTcp}) {
    for (const Gpus gpus : kBoth) {
      GpuWorld world(3, gpus, gpu_options(), wire);
      world.ranks().run([&](int rank) {
        for (int step = 0; step < 3; ++step) {
          CHECK_EQ(try_sum(world, rank, "x"), "fine");
          std::vector<float> values(kCount, 1.0F);
          run_operation(world.engine(rank), make_allreduce("cpu", {view(values)}, {view(values)}));
          CHECK_EQ(values[0], 3.0F);
        }
      });
      CHECK_EQ(world.end(), "");
    }
  }
}

TEST("engine gpu: a rank that has joined without a GPU fails the operation of the others, not the job") {
  GpuWorld world(2, Gpus::kOurs);
  world.ranks().run([&](int rank) {
    if (rank == 0) {
      const std::string heard = try_sum(world, rank, "x");
      CHECK(heard.starts_with(of_kind(ErrorKind::kMismatch)));
      CHECK(contains(heard, "rank 1 has joined without a GPU to take part with"));
    }
    run_operation(world.engine(rank), make_operation(OpKind::kJoin, kJoinName, {}, {}));
    CHECK_EQ(try_sum(world, rank, "x"), "fine");
  });
  CHECK_EQ(world.end(), "");
}

// A rank dies with operations in all states: announced, on streams that stand still, and on the host. Its engine lives
// on here and may tell that it lost the others; who is named when a process dies is tested with processes.
void kill_in_the_middle(Gpus gpus, const std::string& injection) {
  GpuWorld world(3, gpus, gpu_options(), Wire::kMemory, 1);
  world.ranks().run([&](int rank) { CHECK_EQ(try_sum(world, rank, "before"), "fine"); });
  if (!injection.empty()) CHECK_EQ(world.nccl().configure(injection.c_str()), 1);
  std::vector<GpuTensor> tensors;
  std::vector<std::shared_ptr<Operation>> operations;
  for (int rank = 0; rank < 3; ++rank) {
    tensors.push_back(world.tensor(rank, DType::kFloat32, kCount, 1));
    tensors.push_back(world.tensor(rank, DType::kFloat32, kCount, 1));
    operations.push_back(reduction("both", tensors[static_cast<size_t>(rank) * 2]));
    operations.push_back(reduction("alone", tensors[static_cast<size_t>(rank) * 2 + 1]));
  }
  std::atomic<int> num_kept{2};
  for (size_t i = 0; i < 2; ++i) {
    operations[i]->request.keeper = Keeper(&num_kept, [](void* count) { --*static_cast<std::atomic<int>*>(count); });
  }
  for (size_t rank = 0; rank < 3; ++rank) {
    if (rank == 0 || !injection.empty()) world.engine(static_cast<int>(rank)).submit(operations[rank * 2]);
    if (rank == 0) world.engine(0).submit(operations[1]);
  }
  if (!injection.empty()) CHECK(world.engine(0).wait(*operations[0], std::chrono::seconds(20)));  // it is on its stream
  const auto start = std::chrono::steady_clock::now();
  world.ranks().kill_victim();
  world.ranks().run([&](int rank) {
    if (rank == 1) return;
    if (rank == 0) CHECK(world.engine(0).wait(*operations[1], std::chrono::seconds(20)));
    const std::string heard = try_sum(world, rank, "after");
    CHECK(contains(heard, " was lost"));
    CHECK(heard.starts_with(of_kind(ErrorKind::kPeerLost)));
  });
  REQUIRE(operations[1]->error().has_value());
  CHECK(contains(operations[1]->error()->what(), "alone failed: rank "));
  CHECK(operations[1]->settled());  // no device has seen it
  if (!injection.empty()) {
    const std::string heard = outcome([&] { world.engine(0).order(*operations[0], world.device_of(0), nullptr); });
    CHECK(contains(heard, "both failed: rank "));
    CHECK(GpuWorld::settles(*operations[0]));  // its kernel has been aborted
  }
  const Operation nobodys;
  while (num_kept.load() > 0 && std::chrono::steady_clock::now() - start < kPrompt) {  // nobody calls the engine
    static_cast<void>(nobodys.wait_done(std::chrono::milliseconds(1)));
  }
  CHECK_EQ(num_kept.load(), 0);
  CHECK(std::chrono::steady_clock::now() - start < kPrompt);
  world.ranks().run([&](int rank) { world.engine(rank).close("the test is over"); });
  CHECK(std::chrono::steady_clock::now() - start < kPrompt + kPrompt);
}

TEST("engine gpu: a rank dies, and everything ends") {
  for (const Gpus gpus : kBoth) kill_in_the_middle(gpus, "");
}

TEST("engine gpu: a rank dies while kernels wait for it") { kill_in_the_middle(Gpus::kOurs, "hang:allreduce:2@1"); }

TEST("engine gpu: an error that NCCL has by itself is told to all ranks with its operation") {
  GpuWorld world(2, Gpus::kOurs);
  CHECK_EQ(world.nccl().configure("async_error:allreduce:2@1"), 1);
  const auto start = std::chrono::steady_clock::now();
  world.ranks().run([&](int rank) {
    CHECK_EQ(try_sum(world, rank, "first"), "fine");
    std::string heard;
    for (int i = 0; i < 100 && heard != "fine" && !contains(heard, "failed"); ++i) {
      const GpuTensor tensor = world.tensor(rank, DType::kFloat32, kCount, 1);
      const auto operation = reduction("second", tensor);
      heard = outcome([&] {
        submit_to(world.engine(rank), operation, true);
        CHECK(world.engine(rank).wait(*operation, std::chrono::seconds(20)));
        if (operation->error()) throw Error(*operation->error());
        CHECK(GpuWorld::settles(*operation));
        world.engine(rank).order(*operation, world.device_of(rank), nullptr);
      });
    }
    CHECK(heard.starts_with(of_kind(ErrorKind::kInternal)));
    CHECK(contains(heard, "rank 1"));
    CHECK(contains(try_sum(world, rank, "later"), "second"));
  });
  CHECK(std::chrono::steady_clock::now() - start < kPrompt + kPrompt);
}

TEST("engine gpu: a device that fails is named with its operation, also to ranks whose devices work") {
  for (const Gpus gpus : kBoth) {
    GpuWorld world(2, gpus);
    world.ranks().run([&](int rank) { CHECK_EQ(try_sum(world, rank, "first"), "fine"); });
    std::vector<GpuTensor> tensors{world.tensor(0, DType::kFloat32, kCount, 1),
                                   world.tensor(1, DType::kFloat32, kCount, 1)};
    world.cuda().fail_device(world.device_of(1), 719);
    const auto start = std::chrono::steady_clock::now();
    world.ranks().run([&](int rank) {
      const auto operation = reduction("second", tensors[static_cast<size_t>(rank)]);
      const std::string heard = outcome([&] { world.run_operation(rank, operation); });
      if (rank == 1) CHECK(contains(heard, "CUDA_ERROR_LAUNCH_FAILED"));
      if (rank == 1) world.engine(1).close("its device has failed");
      if (rank == 0) CHECK(heard != "fine");
    });
    CHECK(std::chrono::steady_clock::now() - start < kPrompt + kPrompt);
  }
}

TEST("engine gpu: engines that are closed let the device end what all ranks take part in") {
  for (const Gpus gpus : kBoth) {
    GpuWorld world(2, gpus);
    world.ranks().run([&](int rank) { CHECK_EQ(try_sum(world, rank, "first"), "fine"); });
    std::vector<GpuTensor> tensors;
    std::vector<std::shared_ptr<Operation>> operations;
    for (int rank = 0; rank < 2; ++rank) {
      tensors.push_back(world.tensor(rank, DType::kFloat32, kCount, 1));
      operations.push_back(reduction("last", tensors.back()));
    }
    CHECK_EQ(world.cuda().configure("delay_us:20000"), 1);
    world.ranks().run([&](int rank) {
      const auto at = static_cast<size_t>(rank);
      submit_to(world.engine(rank), operations[at], true);
      CHECK(world.engine(rank).wait(*operations[at], std::chrono::seconds(20)));
      world.engine(rank).close("the job is over");
      CHECK(!operations[at]->error());
      CHECK(operations[at]->settled());
      CHECK(!operations[at]->gpu.error());
      CHECK_EQ(tensors[at].get(0), 2.0);
    });
    CHECK_EQ(std::string(world.cuda().wrong_uses()), "");
  }
}

TEST("engine gpu: an agreement of one process set does not keep another one waiting") {
  GpuWorld world(3, Gpus::kOurs);
  world.ranks().run([&](int rank) {
    auto add = make_operation(OpKind::kAddProcessSet, "process_set.change", {}, {});
    add->request.ranks = {0, 1};
    run_operation(world.engine(rank), add);
    const GpuTensor tensor = world.tensor(rank, DType::kFloat32, kCount, 1);
    const GpuTensor of_two = world.tensor(rank, DType::kFloat32, kCount, 1);
    const auto everybody = reduction("everybody", tensor);
    const auto two = reduction("two", of_two);
    two->request.process_set = add->result.new_process_set;
    if (rank == 2) {  // comes when the others are done with theirs
      run_operation(world.engine(rank), make_operation(OpKind::kBarrier, "barrier.noname", {}, {}));
      submit_to(world.engine(rank), everybody, true);
    } else {
      world.engine(rank).submit(everybody);
      world.run_operation(rank, two);
      CHECK_EQ(of_two.get(0), 2.0);
      run_operation(world.engine(rank), make_operation(OpKind::kBarrier, "barrier.noname", {}, {}));
    }
    world.wait(rank, everybody);
    CHECK_EQ(tensor.get(0), 3.0);
  });
  CHECK_EQ(world.end(), "");
}

}  // namespace
}  // namespace hvd::testing
