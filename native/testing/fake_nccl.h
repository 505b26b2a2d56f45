// The fake NCCL of tests/fakes/gpu, and ranks that are threads with a GPU of the fake driver each.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <type_traits>
#include <vector>

#include "backend/nccl/library.h"
#include "backend/nccl/nccl_backend.h"
#include "nccl_control.h"
#include "testing/array.h"
#include "testing/fake_cuda.h"

namespace hvd::testing {

// What a test asks of it. Undoes what other tests asked for, at its beginning and at its end.
class FakeNccl {
 public:
  FakeNccl();
  FakeNccl(const FakeNccl&) = delete;
  FakeNccl& operator=(const FakeNccl&) = delete;
  ~FakeNccl();

  [[nodiscard]] const std::shared_ptr<const nccl::Library>& library() const { return library_; }

#define HVD_DECLARE(type, name, parameters) std::add_pointer_t<type parameters> name = nullptr;
  FAKE_NCCL_CONTROLS(HVD_DECLARE)
#undef HVD_DECLARE

 private:
  std::shared_ptr<const nccl::Library> library_;
};

// What a rank's engine would be: a backend, and a wait for its ring.
class NcclRank {
 public:
  NcclRank(const FakeNccl& nccl, const FakeCuda& cuda, int device, nccl::NcclOptions options);

  [[nodiscard]] nccl::NcclBackend& backend() { return *backend_; }
  [[nodiscard]] const std::shared_ptr<device::Gpu>& gpu() const { return gpu_; }
  void end() { backend_.reset(); }

  // Advances until the condition holds. Throws what advance() throws, or Fatal after 30 s.
  void advance_until(Execution& execution, const std::function<bool()>& condition);
  void finish(Execution& execution);

 private:
  std::mutex mutex_;
  std::condition_variable rung_;
  int num_rings_ = 0;
  std::shared_ptr<device::Gpu> gpu_;
  std::unique_ptr<nccl::NcclBackend> backend_;
};

class NcclWorld {
 public:
  // Rank r has the device devices[r], or r.
  explicit NcclWorld(int size, nccl::NcclOptions options = {}, std::vector<int> devices = {});

  [[nodiscard]] int size() const { return static_cast<int>(ranks_.size()); }
  [[nodiscard]] FakeCuda& cuda() { return cuda_; }
  [[nodiscard]] FakeNccl& nccl() { return nccl_; }
  [[nodiscard]] NcclRank& rank(int rank) { return *ranks_[static_cast<size_t>(rank)]; }
  // Runs `body(rank)` on a thread for each rank and joins them. The first exception is thrown again.
  void run(const std::function<void(int rank)>& body);

  // Of all ranks, or of some of them.
  void add_communicators(uint32_t set = 0, std::vector<int> members = {});
  [[nodiscard]] nccl::CommunicatorSpec spec(uint32_t set, const std::vector<int>& members, int rank);
  // Without tensors.
  [[nodiscard]] Batch batch(int rank, DType dtype, ReduceOp op = ReduceOp::kSum, uint32_t set = 0);
  [[nodiscard]] DeviceBytes on_device(int rank, const std::vector<std::byte>& values);
  // Ends all backends; returns what is wrong then: communicators, streams or memory that are left, uses of the fakes
  // that are wrong.
  [[nodiscard]] std::string end();

 private:
  FakeCuda cuda_;
  FakeNccl nccl_;
  int64_t allocations_before_ = cuda_.alive("allocations");  // a context may end before what it frees
  std::vector<int> devices_;
  std::vector<std::unique_ptr<NcclRank>> ranks_;
  std::map<uint32_t, std::pair<std::vector<int>, std::string>> sets_;  // members and unique id
};

}  // namespace hvd::testing
