// Compiled for each variant of the library.
#include "cuda/settings.h"

namespace fake_cuda {

int version_of_library() { return FAKE_VERSION; }

}  // namespace fake_cuda
