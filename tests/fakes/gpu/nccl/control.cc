// What tests ask for.
#include "nccl/exported.h"
#include "nccl_control.h"

namespace fake_nccl {

EXPORTED int fake_nccl_configure(const char* specification) { return configure(specification) ? 1 : 0; }
EXPORTED void fake_nccl_release() { release(); }
EXPORTED int64_t fake_nccl_communicators() { return num_communicators(); }
EXPORTED int64_t fake_nccl_calls(const char* function) { return calls_of(function); }
EXPORTED void fake_nccl_reset() { reset(); }

}  // namespace fake_nccl
