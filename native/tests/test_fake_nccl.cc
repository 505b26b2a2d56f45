// The fake NCCL itself: what it lets pass, tests of real code cannot see.
#include <dlfcn.h>

#include <atomic>
#include <thread>

#include "nccl/codes.h"
#include "nccl_control.h"
#include "testing/check.h"
#include "testing/fake_cuda.h"

namespace hvd::testing {
namespace {

using fake_nccl::kAvg;
using fake_nccl::kFloat16;
using fake_nccl::kFloat32;
using fake_nccl::kInProgress;
using fake_nccl::kInt32;
using fake_nccl::kInvalidArgument;
using fake_nccl::kInvalidUsage;
using fake_nccl::kRemoteError;
using fake_nccl::kSuccess;
using fake_nccl::kSum;
using fake_nccl::kSystemError;

// The functions, by dlsym.
struct Nccl {
  explicit Nccl(const std::string& name = "libfake_nccl.so")
      : library(dlopen(fake_gpu_library(name).c_str(), RTLD_NOW | RTLD_LOCAL)) {
    REQUIRE(library != nullptr);
    call<void()>("fake_nccl_reset")();
  }
  Nccl(const Nccl&) = delete;
  Nccl& operator=(const Nccl&) = delete;
  ~Nccl() { call<void()>("fake_nccl_reset")(); }

  template <typename Function>
  [[nodiscard]] Function* call(const char* name) const {
    void* found = dlsym(library, name);
    REQUIRE(found != nullptr);
    return reinterpret_cast<Function*>(found);
  }
  void configure(const char* words) const { CHECK_EQ(call<int(const char*)>("fake_nccl_configure")(words), 1); }

  void* library;
};

// One rank: a thread, a device, a stream.
class Rank {
 public:
  Rank(const FakeCuda& its_cuda, const Nccl& its_nccl, int its_rank, int device)
      : cuda(its_cuda), nccl(its_nccl), rank(its_rank), gpu(cuda.gpu(device)), stream(gpu->make_stream(true)) {}
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;
  ~Rank() {
    if (comm != nullptr) CHECK_EQ(nccl.call<int(void*)>("ncclCommAbort")(comm), kSuccess);
    gpu->destroy_stream(stream);
  }

  // Returns what the call has returned.
  int init(int size, const fake_nccl::UniqueId& id, bool blocking) {
    const device::Gpu::Current current(*gpu);
    constexpr int kUndefined = fake_nccl::kUndefined;
    const fake_nccl::Config config{
        sizeof config, fake_nccl::kConfigMagic, 22907, blocking ? 1 : 0, kUndefined, kUndefined, kUndefined};
    using Init = int(void**, int, fake_nccl::UniqueId, int, const fake_nccl::Config*);
    return nccl.call<Init>("ncclCommInitRankConfig")(&comm, size, id, rank, &config);
  }
  int state_now() {
    int state = kInProgress;
    CHECK_EQ(nccl.call<int(void*, int*)>("ncclCommGetAsyncError")(comm, &state), kSuccess);
    return state;
  }
  // When it is not in progress any more.
  int state() {
    for (int i = 0; i < 10000 && state_now() == kInProgress; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return state_now();
  }
  int allreduce(const void* from, void* to, size_t count, int dtype, int op) {
    using Call = int(const void*, void*, size_t, int, int, void*, void*);
    return nccl.call<Call>("ncclAllReduce")(from, to, count, dtype, op, comm, stream);
  }
  int allgather(const void* from, void* to, size_t count) {
    using Call = int(const void*, void*, size_t, int, void*, void*);
    return nccl.call<Call>("ncclAllGather")(from, to, count, kFloat32, comm, stream);
  }
  void abort() {
    CHECK_EQ(nccl.call<int(void*)>("ncclCommAbort")(comm), kSuccess);
    comm = nullptr;
  }

  const FakeCuda& cuda;
  const Nccl& nccl;
  int rank;
  std::shared_ptr<device::Gpu> gpu;
  device::Stream stream;
  void* comm = nullptr;
};

fake_nccl::UniqueId make_id(const Nccl& nccl) {
  fake_nccl::UniqueId id{};
  CHECK_EQ(nccl.call<int(fake_nccl::UniqueId*)>("ncclGetUniqueId")(&id), kSuccess);
  return id;
}

// Ranks of a communicator that is ready, each on a thread.
void run(const FakeCuda& cuda, const Nccl& nccl, int size, bool blocking, const std::function<void(Rank&)>& body) {
  const fake_nccl::UniqueId id = make_id(nccl);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      Rank each(cuda, nccl, rank, rank);
      CHECK_EQ(each.init(size, id, blocking), blocking ? kSuccess : kInProgress);
      CHECK_EQ(each.state(), kSuccess);
      body(each);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

std::string last_error(const Nccl& nccl) { return nccl.call<const char*(void*)>("ncclGetLastError")(nullptr); }

TEST("fake nccl: an average, a factor of each rank's own, and half types") {
  const FakeCuda cuda;
  const Nccl nccl;
  run(cuda, nccl, 3, true, [&](Rank& rank) {
    const std::vector<float> given{1.0F + static_cast<float>(rank.rank), 8};
    std::vector<float> average(2);
    CHECK_EQ(rank.allreduce(given.data(), average.data(), 2, kFloat32, kAvg), kSuccess);
    const float factor = static_cast<float>(rank.rank) * 0.5F;
    int op = 0;
    using Create = int(int*, const void*, int, int, void*);
    CHECK_EQ(nccl.call<Create>("ncclRedOpCreatePreMulSum")(&op, &factor, kFloat32, 1, rank.comm), kSuccess);
    std::vector<float> scaled = given;
    CHECK_EQ(rank.allreduce(scaled.data(), scaled.data(), 2, kFloat32, op), kSuccess);
    CHECK_EQ(nccl.call<int(int, void*)>("ncclRedOpDestroy")(op, rank.comm), kSuccess);
    std::vector<uint16_t> half{0x3C00, 0x0001, 0x7BFF};  // 1, the smallest, the largest
    CHECK_EQ(rank.allreduce(half.data(), half.data(), 3, kFloat16, kSum), kSuccess);
    CHECK_EQ(cuda.synchronize(rank.stream), 0);
    CHECK_EQ(average[0], 2.0F);
    CHECK_EQ(scaled[0], 4.0F);
    CHECK_EQ(scaled[1], 12.0F);
    CHECK(half == (std::vector<uint16_t>{0x4200, 0x0003, 0x7C00}));
  });
  CHECK_EQ(std::string(cuda.wrong_uses()), "");
  CHECK_EQ(nccl.call<int64_t()>("fake_nccl_communicators")(), 0);
}

TEST("fake nccl: groups of sends, receives and collectives, also with itself") {
  const FakeCuda cuda;
  const Nccl nccl;
  run(cuda, nccl, 3, false, [&](Rank& rank) {
    using Move = int(void*, size_t, int, int, void*, void*);
    std::vector<int> given{10 * rank.rank, 10 * rank.rank + 1, 10 * rank.rank + 2};
    std::vector<int> taken(3);
    const float mine = static_cast<float>(rank.rank);
    std::vector<float> all(3);
    CHECK_EQ(nccl.call<int()>("ncclGroupStart")(), kSuccess);
    for (int peer = 0; peer < 3; ++peer) {
      const auto at = static_cast<size_t>(peer);
      CHECK_EQ(nccl.call<Move>("ncclRecv")(&taken[at], 1, kInt32, peer, rank.comm, rank.stream), kSuccess);
      CHECK_EQ(nccl.call<Move>("ncclSend")(&given[at], 1, kInt32, peer, rank.comm, rank.stream), kSuccess);
    }
    CHECK_EQ(rank.allgather(&mine, all.data(), 1), kSuccess);
    CHECK_EQ(nccl.call<int()>("ncclGroupEnd")(), kInProgress);
    CHECK_EQ(rank.state(), kSuccess);
    CHECK_EQ(cuda.synchronize(rank.stream), 0);
    CHECK(taken == (std::vector<int>{rank.rank, 10 + rank.rank, 20 + rank.rank}));
    CHECK(all == (std::vector<float>{0, 1, 2}));
  });
  CHECK_EQ(std::string(cuda.wrong_uses()), "");
}

TEST("fake nccl: a call before the last one is through is an error") {
  const FakeCuda cuda;
  const Nccl nccl;
  nccl.configure("launch:later");
  run(cuda, nccl, 2, false, [&](Rank& rank) {
    float value = 1;
    CHECK_EQ(rank.allreduce(&value, &value, 1, kFloat32, kSum), kInProgress);
    CHECK_EQ(rank.allreduce(&value, &value, 1, kFloat32, kSum), kInvalidArgument);
    CHECK_EQ(rank.state(), kSuccess);
    CHECK_EQ(cuda.synchronize(rank.stream), 0);
    CHECK_EQ(value, 2.0F);
  });
  CHECK(contains(cuda.wrong_uses(), "before the previous operation returned ncclSuccess"));
}

TEST("fake nccl: ranks that do not say the same get an error, and their streams stop until the end") {
  const FakeCuda cuda;
  const Nccl nccl;
  run(cuda, nccl, 2, true, [&](Rank& rank) {
    std::vector<float> values(4);
    const size_t count = rank.rank == 0 ? 2 : 3;
    CHECK_EQ(rank.allreduce(values.data(), values.data(), count, kFloat32, kSum), kSuccess);
    const device::SharedEvent event = rank.gpu->record(rank.stream);
    int state = kSuccess;
    for (int i = 0; i < 10000 && state == kSuccess; ++i) {
      state = rank.state_now();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    CHECK_EQ(state, kInvalidUsage);
    CHECK(contains(last_error(nccl), "of 2 elements"));
    CHECK_EQ(rank.allreduce(values.data(), values.data(), count, kFloat32, kSum), kInvalidUsage);
    CHECK(!event->reached());
    rank.abort();
    CHECK_EQ(cuda.synchronize(rank.stream), 0);
  });
}

TEST("fake nccl: a rank that does not come holds the others until they abort") {
  const FakeCuda cuda;
  const Nccl nccl;
  run(cuda, nccl, 2, false, [&](Rank& rank) {
    if (rank.rank == 1) return;  // aborts
    float value = 1;
    rank.allreduce(&value, &value, 1, kFloat32, kSum);
    CHECK_EQ(rank.state(), kSuccess);
    const device::SharedEvent event = rank.gpu->record(rank.stream);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    CHECK(!event->reached());
    CHECK_EQ(rank.state(), kSuccess);
    rank.abort();
    CHECK_EQ(cuda.synchronize(rank.stream), 0);
  });
}

TEST("fake nccl: two ranks on one GPU are refused") {
  const FakeCuda cuda;
  const Nccl nccl;
  const fake_nccl::UniqueId id = make_id(nccl);
  Rank first(cuda, nccl, 0, 2);
  Rank second(cuda, nccl, 1, 2);
  CHECK_EQ(first.init(2, id, false), kInProgress);
  CHECK_EQ(second.init(2, id, false), kInProgress);
  CHECK_EQ(first.state(), kInvalidUsage);
  CHECK_EQ(second.state(), kInvalidUsage);
  CHECK(contains(last_error(nccl), "Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 2"));
}

TEST("fake nccl: a rank that comes twice is refused") {
  const FakeCuda cuda;
  const Nccl nccl;
  const fake_nccl::UniqueId id = make_id(nccl);
  Rank first(cuda, nccl, 0, 0);
  Rank second(cuda, nccl, 0, 1);
  CHECK_EQ(first.init(2, id, false), kInProgress);
  CHECK_EQ(second.init(2, id, false), kInProgress);
  bool refused = false;
  for (int i = 0; i < 10000 && !refused; ++i) {
    refused = first.state_now() == kInvalidUsage || second.state_now() == kInvalidUsage;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  CHECK(refused);
  CHECK(first.state_now() == kInProgress || second.state_now() == kInProgress);
  CHECK(contains(last_error(nccl), "rank 0 comes twice"));
}

TEST("fake nccl: what a test wants to go wrong does, on the rank and at the call that it names") {
  const FakeCuda cuda;
  const Nccl nccl;
  nccl.configure("fail:allreduce:2@1,async_error:allreduce:3@0,launch:now");
  run(cuda, nccl, 2, false, [&](Rank& rank) {
    float value = 1;
    CHECK_EQ(rank.allreduce(&value, &value, 1, kFloat32, kSum), kSuccess);
    CHECK_EQ(cuda.synchronize(rank.stream), 0);
    CHECK_EQ(value, 2.0F);
    if (rank.rank == 1) {
      CHECK_EQ(rank.allreduce(&value, &value, 1, kFloat32, kSum), kSystemError);
      return;
    }
    CHECK_EQ(rank.allreduce(&value, &value, 1, kFloat32, kSum), kSuccess);
    CHECK_EQ(rank.allreduce(&value, &value, 1, kFloat32, kSum), kSuccess);
    CHECK_EQ(rank.state(), kSuccess);  // the second one waits for ever, so the third does not come
  });
  nccl.configure("");
  nccl.configure("hang:init@1,async_error:init@0");
  const fake_nccl::UniqueId id = make_id(nccl);
  Rank first(cuda, nccl, 0, 0);
  Rank second(cuda, nccl, 1, 1);
  CHECK_EQ(first.init(2, id, false), kInProgress);
  CHECK_EQ(second.init(2, id, false), kInProgress);
  CHECK_EQ(first.state(), kRemoteError);
  CHECK_EQ(second.state_now(), kInProgress);
}

TEST("fake nccl: the end of a group fails, or hangs, where a test wants it") {
  const FakeCuda cuda;
  const Nccl nccl;
  nccl.configure("fail:group_end:1,hang:group_end:2,launch:now");
  run(cuda, nccl, 1, false, [&](Rank& rank) {
    float value = 3;
    const auto end_group = [&] {
      CHECK_EQ(nccl.call<int()>("ncclGroupStart")(), kSuccess);
      CHECK_EQ(rank.allreduce(&value, &value, 1, kFloat32, kSum), kSuccess);
      return nccl.call<int()>("ncclGroupEnd")();
    };
    CHECK_EQ(end_group(), kSystemError);
    std::atomic<bool> ended{false};
    std::thread caller([&] {
      CHECK_EQ(end_group(), kSuccess);
      ended = true;
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    CHECK(!ended);
    for (int i = 0; i < 10000 && !ended; ++i) {  // it may not have come there before
      nccl.call<void()>("fake_nccl_release")();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    caller.join();
    CHECK_EQ(cuda.synchronize(rank.stream), 0);
  });
}

TEST("fake nccl: a communicator goes on without a lost rank") {
  const FakeCuda cuda;
  const Nccl nccl;
  run(cuda, nccl, 3, true, [&](Rank& rank) {
    if (rank.rank == 1) return;
    float value = 1;
    CHECK_EQ(rank.allreduce(&value, &value, 1, kFloat32, kSum), kSuccess);  // waits for rank 1
    const int lost = 1;
    void* shrunk = nullptr;
    {
      const device::Gpu::Current current(*rank.gpu);
      using Shrink = int(void*, const int*, int, void**, const void*, int);
      CHECK_EQ(nccl.call<Shrink>("ncclCommShrink")(rank.comm, &lost, 1, &shrunk, nullptr, 1), kSuccess);
    }
    rank.abort();
    rank.comm = shrunk;
    CHECK_EQ(cuda.synchronize(rank.stream), 0);
    CHECK_EQ(rank.allreduce(&value, &value, 1, kFloat32, kSum), kSuccess);
    CHECK_EQ(cuda.synchronize(rank.stream), 0);
    CHECK_EQ(value, 2.0F);
  });
}

TEST("fake nccl: variants are old, or lack functions") {
  const auto version_of = [](const char* name) {
    int version = 0;
    CHECK_EQ(Nccl(name).call<int(int*)>("ncclGetVersion")(&version), kSuccess);
    return version;
  };
  CHECK_EQ(version_of("libfake_nccl.so"), 22907);
  CHECK_EQ(version_of("libfake_nccl_old.so"), 21003);
  CHECK_EQ(version_of("libfake_nccl_2_22.so"), 22203);
  CHECK(dlsym(Nccl("libfake_nccl_2_22.so").library, "ncclCommShrink") == nullptr);
  CHECK(dlsym(Nccl("libfake_nccl_damaged.so").library, "ncclReduceScatter") == nullptr);
}

}  // namespace
}  // namespace hvd::testing
