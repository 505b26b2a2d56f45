// An array of each rank of a host that all of them see: the same number of bytes on every rank, in shared memory.
//
// Whoever uses this rank's array holds the region. While an operation runs, peers write into it. When one fails in the
// middle, the peers may not know yet, so this rank's array moves out of their reach: it stays where it is for this
// process, with its values, in private memory.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <vector>

#include "transport/segment.h"

namespace hvd {

class SharedRegion {
 public:
  // `segments`: by rank. Throws Error if the system refuses.
  SharedRegion(const std::vector<const Segment*>& segments, int rank, size_t offset, size_t bytes);
  SharedRegion(const SharedRegion&) = delete;
  SharedRegion& operator=(const SharedRegion&) = delete;
  ~SharedRegion();

  // The array of a rank, as it is mapped here.
  [[nodiscard]] std::byte* data(int rank) const { return arrays_[static_cast<size_t>(rank)]; }
  [[nodiscard]] std::byte* own() const { return data(rank_); }
  // The same on all ranks, and never that of another region.
  [[nodiscard]] size_t offset() const { return offset_; }
  [[nodiscard]] bool contains(const std::byte* data, size_t bytes) const;

  // Moves this rank's array into private memory, at its address. What other threads of this process write into it
  // meanwhile may be lost. Throws Error if the system refuses.
  void detach();

 private:
  void unmap();

  int rank_;
  size_t offset_;
  size_t bytes_;
  std::vector<std::byte*> arrays_;
  pid_t process_;
  bool detached_ = false;
};

}  // namespace hvd
