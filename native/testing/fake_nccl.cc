#include "testing/fake_nccl.h"

#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <map>
#include <numeric>
#include <thread>

#include "testing/check.h"

namespace hvd::testing {
namespace {

constexpr std::chrono::seconds kPatience{30};
constexpr std::chrono::milliseconds kLook{100};

}  // namespace

FakeNccl::FakeNccl() {
  const std::string path = fake_gpu_library("libfake_nccl.so");
  void* opened = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (opened == nullptr) throw Fatal(dlerror());
#define HVD_FIND(type, name, parameters) find_control(opened, "fake_nccl_" #name, name);
  FAKE_NCCL_CONTROLS(HVD_FIND)
#undef HVD_FIND
  reset();
  library_ = nccl::load_library({path});
}

FakeNccl::~FakeNccl() { reset(); }

NcclRank::NcclRank(const FakeNccl& nccl, const FakeCuda& cuda, int device, nccl::NcclOptions options)
    : gpu_(cuda.gpu(device)) {
  const auto ring = [this] {
    const std::lock_guard lock(mutex_);
    ++num_rings_;
    rung_.notify_all();
  };
  backend_ = std::make_unique<nccl::NcclBackend>(nccl.library(), ring, options);
}

// As the engine, which has other reasons to look, too: a failure that nobody rings for would be a fault, but not a
// hang.
void NcclRank::advance_until(Execution& execution, const std::function<bool()>& condition) {
  const auto until = std::chrono::steady_clock::now() + kPatience;
  int seen = 0;
  while (true) {
    {
      const std::lock_guard lock(mutex_);
      seen = num_rings_;
    }
    execution.advance();
    if (condition()) return;
    if (std::chrono::steady_clock::now() > until) throw Fatal("an execution does not go on");
    std::unique_lock lock(mutex_);
    rung_.wait_for(lock, kLook, [&] { return num_rings_ != seen; });
  }
}

void NcclRank::finish(Execution& execution) {
  advance_until(execution, [&] { return execution.done(); });
}

NcclWorld::NcclWorld(int size, nccl::NcclOptions options, std::vector<int> devices) : devices_(std::move(devices)) {
  if (devices_.empty()) {
    devices_.resize(static_cast<size_t>(size));
    std::iota(devices_.begin(), devices_.end(), 0);
  }
  for (const int device : devices_) ranks_.push_back(std::make_unique<NcclRank>(nccl_, cuda_, device, options));
}

void NcclWorld::run(const std::function<void(int rank)>& body) {
  std::vector<std::exception_ptr> errors(ranks_.size());
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size(); ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(rank);
      } catch (...) {
        errors[static_cast<size_t>(rank)] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors) {
    if (error != nullptr) std::rethrow_exception(error);
  }
}

nccl::CommunicatorSpec NcclWorld::spec(uint32_t set, const std::vector<int>& members, int rank) {
  auto& known = sets_[set];
  if (known.second.empty()) known = {members, this->rank(members.front()).backend().make_unique_id()};
  nccl::CommunicatorSpec made;
  made.set = set;
  const auto place = std::find(members.begin(), members.end(), rank);
  made.set_rank = static_cast<int>(place - members.begin());
  made.gpu = this->rank(rank).gpu();
  made.unique_id = known.second;
  for (const int member : members) {
    made.devices.push_back(devices_[static_cast<size_t>(member)]);
    made.rank_names.push_back("rank " + std::to_string(member) + " on host-" + std::to_string(member));
  }
  return made;
}

void NcclWorld::add_communicators(uint32_t set, std::vector<int> members) {
  if (members.empty()) {
    members.resize(ranks_.size());
    std::iota(members.begin(), members.end(), 0);
  }
  for (const int member : members) rank(member).backend().add_communicator(spec(set, members, member));
}

Batch NcclWorld::batch(int rank, DType dtype, ReduceOp op, uint32_t set) {
  const std::vector<int>& members = sets_.at(set).first;
  Batch made;
  made.set = set;
  made.members = members;
  made.set_rank = static_cast<int>(std::find(members.begin(), members.end(), rank) - members.begin());
  made.dtype = dtype;
  made.op = op;
  for (const int member : members) made.devices.push_back(devices_[static_cast<size_t>(member)]);
  made.gpu = this->rank(rank).gpu();
  made.what = "allreduce.x";
  return made;
}

DeviceBytes NcclWorld::on_device(int rank, const std::vector<std::byte>& values) {
  return {cuda_, this->rank(rank).gpu(), values};
}

std::string NcclWorld::end() {
  run([&](int rank) { this->rank(rank).end(); });
  std::string text = cuda_.wrong_uses();
  const auto expect_none = [&](int64_t count, const std::string& what) {
    if (count != 0) text += std::to_string(count) + " " + what + " are left\n";
  };
  for (const auto& each : ranks_) {  // memory is freed in the order of the default stream
    const device::Gpu::Current current(*each->gpu());
    if (cuda_.synchronize(nullptr) != device::kSuccess) text += each->gpu()->where() + " does not end\n";
  }
  // A thread that aborted a communicator lets go of it a moment after it has said so.
  const auto until = std::chrono::steady_clock::now() + kPatience;
  while (cuda_.alive("streams") > 0 && std::chrono::steady_clock::now() < until) std::this_thread::yield();
  expect_none(nccl_.communicators(), "communicators");
  expect_none(cuda_.alive("streams"), "streams");
  expect_none(cuda_.alive("allocations") - allocations_before_, "allocations");
  return text;
}

}  // namespace hvd::testing
