// The collectives as MPI does them.
//
// A batch of one tensor is given to MPI where it lies. Several are packed, so that one call moves all: MPI's own
// operations take no derived datatypes. Half types travel as float32.
#pragma once

#include <memory>
#include <vector>

#include "backend/backend.h"
#include "backend/mpi/mpi_process.h"
#include "backend/mpi/operators.h"

namespace hvd::mpi {

std::unique_ptr<Task> make_allreduce(Batch batch, SharedComm comm, const Operators& operators);
std::unique_ptr<Task> make_reducescatter(Batch batch, SharedComm comm, const Operators& operators,
                                         const std::vector<int64_t>& counts);
std::unique_ptr<Task> make_allgather(Batch batch, SharedComm comm, const std::vector<int64_t>& counts);
std::unique_ptr<Task> make_broadcast(Batch batch, SharedComm comm, int root_set_rank);
std::unique_ptr<Task> make_alltoall(Batch batch, SharedComm comm, const std::vector<std::vector<int64_t>>& counts);
std::unique_ptr<Task> make_adasum(Batch batch, SharedComm comm);

// Makes a communicator of these ranks of `world`; they all do, others do not. `tag` tells it from others.
std::unique_ptr<Task> make_communicator(SharedComm world, std::vector<int> members, int tag, SharedComm made);
std::unique_ptr<Task> free_communicator(SharedComm comm);

}  // namespace hvd::mpi
