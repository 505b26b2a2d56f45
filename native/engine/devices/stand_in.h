// What a rank takes part with when its own values do not count: it has joined, or has weight 0.
#pragma once

#include "engine/devices/devices.h"

namespace hvd {

// Gives the operation inputs of neutral values, or of no rows, and room for results that nobody reads. Its request and
// its set rank are set. The memory is on the device, if there is one, and in the order of its stream.
void give_neutral_memory(Operation& operation, int num_members, const std::shared_ptr<EngineDevice>& device);

// Replaces the values of a rank of weight 0 by zeros: 0 times an infinity or a NaN would be a NaN on all ranks. The
// caller's inputs stay as they are, unless they are the outputs.
void withhold_values(Operation& operation, const std::shared_ptr<EngineDevice>& device);

}  // namespace hvd
