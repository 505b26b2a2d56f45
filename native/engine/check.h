// Checks that one rank can make alone, before anything is sent.
#pragma once

#include "engine/operation.h"

namespace hvd {

// Completes the operation's request from its buffers. Throws Error (kUsage, …) if it makes no sense for a process set
// with these members (global ranks).
void check_operation(Operation& operation, const std::vector<int>& members);

}  // namespace hvd
