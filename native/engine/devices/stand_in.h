// What a rank that has joined takes part with while the others go on.
#pragma once

#include "engine/devices/devices.h"

namespace hvd {

// Gives the operation inputs of neutral values, or of no rows, and room for results that nobody reads. Its request and
// its set rank are set. The memory is on the device, if there is one, and in the order of its stream.
void give_neutral_memory(Operation& operation, int num_members, const std::shared_ptr<EngineDevice>& device);

}  // namespace hvd
