// What the executions of plans ask of each frame.
#pragma once

#include <cstddef>

#include "transport/link.h"

namespace hvd {

// Throws Error (kInternal) if a frame has another length than the plan of this rank says.
void check_frame(const Frame& frame, size_t bytes, int sender);

}  // namespace hvd
