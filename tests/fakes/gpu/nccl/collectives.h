// What a group of operations on one communicator does, on the thread of a stream.
#pragma once

#include "nccl/communicator.h"

namespace fake_nccl {

// Throws Failure if ranks do not say the same, or the test wants it, and Ended.
void execute_on(Mesh& mesh, const Communicator::Spec& spec, const std::vector<Operation>& operations,
                const std::function<bool()>& ends);

}  // namespace fake_nccl
