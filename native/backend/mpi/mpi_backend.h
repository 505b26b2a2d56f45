// Collectives on CPU memory by an MPI library.
//
// Each process set has a communicator of its own, made where the ranks agree on the set. All batches of a set are
// given to MPI in the order of their answers, whatever their priority: so the order of calls is the same on all ranks.
#pragma once

#include <functional>
#include <map>

#include "backend/backend.h"
#include "backend/mpi/mpi_process.h"

namespace hvd {

class MpiBackend final : public Backend {
 public:
  // `ring` is called from another thread when an execution may go on. It is not called after the destructor.
  MpiBackend(std::shared_ptr<mpi::MpiWorld> world, std::function<void()> ring);
  MpiBackend(const MpiBackend&) = delete;
  MpiBackend& operator=(const MpiBackend&) = delete;
  ~MpiBackend() override;

  void add_process_set(uint32_t id, const std::vector<int>& members) override;
  void remove_process_set(uint32_t id) override;
  void give_up(const std::string& reason) override { world_->process()->thread().give_up(reason); }

  std::unique_ptr<Execution> execute(Collective collective, Batch batch) override;

 private:
  std::shared_ptr<mpi::MpiWorld> world_;
  std::shared_ptr<Bell> bell_;
  std::map<uint32_t, mpi::SharedComm> comms_;  // by process set
};

}  // namespace hvd
