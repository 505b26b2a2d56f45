#include "backend/native/check_frame.h"

#include <string>

#include "base/error.h"

namespace hvd {

void check_frame(const Frame& frame, size_t bytes, int sender) {
  if (frame.header.bytes == bytes) return;
  throw Error(ErrorKind::kInternal, "rank " + std::to_string(sender) + " sent a frame of " +
                                        std::to_string(frame.header.bytes) + " bytes where the plan says " +
                                        std::to_string(bytes) + ": ranks follow different plans");
}

}  // namespace hvd
