// What is current on a thread, and whether a call may be made there.
#pragma once

#include "cuda/device.h"

namespace fake_cuda {

// The contexts that a thread has pushed.
std::vector<SharedContext>& context_stack();
// The one that is current. Returns why it is of no use.
Result find_current(const char* call, SharedContext& context);
// A stream that a call names; it has to be one of the current context, unless the call takes any.
Result find_stream(const char* call, const void* handle, bool any_context, SharedContext& context,
                   std::shared_ptr<Stream>& stream);

}  // namespace fake_cuda
