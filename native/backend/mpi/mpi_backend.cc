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

std::unique_ptr<Execution> MpiBackend::execute(Collective collective, Batch batch) {
  std::vector<int> members = batch.members;
  const mpi::SharedComm comm = comms_.at(batch.set);
  const auto& process = world_->process();
  auto task = mpi::make_task(collective, std::move(batch), comm, process->operators());
  std::shared_ptr<mpi::Ticket> ticket = process->thread().submit(std::move(task), bell_);
  return std::make_unique<MpiExecution>(process, std::move(ticket), std::move(members));
}

}  // namespace hvd
