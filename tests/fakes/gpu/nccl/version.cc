// Compiled for each variant of the library.
#include "nccl/injection.h"

namespace fake_nccl {

int version_of_library() { return FAKE_VERSION; }

}  // namespace fake_nccl
