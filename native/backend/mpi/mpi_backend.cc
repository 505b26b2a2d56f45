#include "backend/mpi/mpi_backend.h"

#include "backend/mpi/mpi_execution.h"
#include "backend/mpi/operators.h"
#include "backend/mpi/tasks.h"

namespace hvd {

MpiBackend::MpiBackend(std::shared_ptr<mpi::MpiWorld> world, std::function<void()> ring)
    : world_(std::move(world)), bell_(std::make_shared<Bell>(std::move(ring))) {}

// All ranks free their communicators in this order. Nobody waits for it here.
MpiBackend::~MpiBackend() {
  bell_->silence();
  for (const auto& [id, comm] : comms_) world_->process()->thread().submit(mpi::free_communicator(comm));
}

void MpiBackend::add_process_set(uint32_t id, const std::vector<int>& members) {
  if (id == 0) {
    comms_[id] = world_->comm();
    return;
  }
  const auto made = std::make_shared<mpi::Communicator>();
  comms_[id] = made;
  const int tag = static_cast<int>(id % mpi::kLeastTagUpperBound);
  world_->process()->thread().submit(mpi::make_communicator(world_->comm(), members, tag, made));
}

void MpiBackend::remove_process_set(uint32_t id) {
  const auto found = comms_.find(id);
  if (found == comms_.end()) return;
  world_->process()->thread().submit(mpi::free_communicator(found->second));
  comms_.erase(found);
}

const mpi::SharedComm& MpiBackend::comm_of(const Batch& batch) const { return comms_.at(batch.set); }

std::unique_ptr<Execution> MpiBackend::execute(std::vector<int> members, std::unique_ptr<mpi::Task> task) {
  std::shared_ptr<mpi::Ticket> ticket = world_->process()->thread().submit(std::move(task), bell_);
  return std::make_unique<MpiExecution>(world_->process(), std::move(ticket), std::move(members));
}

std::unique_ptr<Execution> MpiBackend::allreduce(Batch batch) {
  const auto comm = comm_of(batch);
  std::vector<int> members = batch.members;
  return execute(std::move(members), mpi::make_allreduce(std::move(batch), comm, world_->process()->operators()));
}

std::unique_ptr<Execution> MpiBackend::adasum(Batch batch) {
  const auto comm = comm_of(batch);
  std::vector<int> members = batch.members;
  return execute(std::move(members), mpi::make_adasum(std::move(batch), comm));
}

std::unique_ptr<Execution> MpiBackend::reducescatter(Batch batch, const std::vector<int64_t>& counts) {
  const auto comm = comm_of(batch);
  std::vector<int> members = batch.members;
  return execute(std::move(members),
                 mpi::make_reducescatter(std::move(batch), comm, world_->process()->operators(), counts));
}

std::unique_ptr<Execution> MpiBackend::allgather(Batch batch, const std::vector<int64_t>& counts) {
  const auto comm = comm_of(batch);
  std::vector<int> members = batch.members;
  return execute(std::move(members), mpi::make_allgather(std::move(batch), comm, counts));
}

std::unique_ptr<Execution> MpiBackend::broadcast(Batch batch, int root_set_rank) {
  const auto comm = comm_of(batch);
  std::vector<int> members = batch.members;
  return execute(std::move(members), mpi::make_broadcast(std::move(batch), comm, root_set_rank));
}

std::unique_ptr<Execution> MpiBackend::alltoall(Batch batch, const std::vector<std::vector<int64_t>>& counts) {
  const auto comm = comm_of(batch);
  std::vector<int> members = batch.members;
  return execute(std::move(members), mpi::make_alltoall(std::move(batch), comm, counts));
}

}  // namespace hvd
