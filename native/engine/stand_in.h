// What a rank that has joined takes part with while the others go on.
#pragma once

#include "engine/operation.h"

namespace hvd {

// Gives the operation inputs of neutral values, or of no rows, and room for results that nobody reads. Its request and
// its set rank are set.
void give_neutral_memory(Operation& operation, int num_members);

}  // namespace hvd
