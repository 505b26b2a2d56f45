// What may start beside the batches that are being executed.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hvd {

// Up to this length a batch is small: it is soon done, so it does not wait behind long ones.
inline constexpr size_t kSmallBatchBytes = size_t{256} << 10;

struct Room {
  bool any = true;               // a batch of any length
  bool small = true;             // one of at most kSmallBatchBytes
  int32_t priority = INT32_MAX;  // whatever has more than this

  [[nodiscard]] bool fits(size_t bytes, int32_t wanted) const {
    return any || wanted > priority || (small && bytes <= kSmallBatchBytes);
  }
};

}  // namespace hvd
