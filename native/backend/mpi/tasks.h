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

std::unique_ptr<Task> make_task(Collective collective, Batch batch, SharedComm comm, const Operators& operators);
std::unique_ptr<Task> make_adasum(Batch batch, SharedComm comm);  // adasum_task.cc

// Makes a communicator of these ranks of `world`; they all do, others do not. `tag` tells it from others.
std::unique_ptr<Task> make_communicator(SharedComm world, std::vector<int> members, int tag, SharedComm made);
std::unique_ptr<Task> free_communicator(SharedComm comm);

}  // namespace hvd::mpi
