// Operations by rows, whose results may go into memory of the caller.
#pragma once

#include "engine/submission/operation.h"

namespace hvd {

// Writes down the tensors of an allgather or alltoall, the rows for each of `num_members` and those that have to come
// from each. Copies inputs that share memory with outputs, unless they lie where their values go. Throws Error (kUsage,
// kUnsupported) if they do not fit together.
void check_rows(Operation& operation, size_t num_members);

}  // namespace hvd
