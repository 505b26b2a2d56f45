#include "transport/shared_region.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "base/error.h"

namespace hvd {

SharedRegion::SharedRegion(const std::vector<const Segment*>& segments, int rank, size_t offset, size_t bytes)
    : rank_(rank), offset_(offset), bytes_(bytes), arrays_(segments.size(), nullptr), process_(getpid()) {
  try {
    for (size_t owner = 0; owner < segments.size(); ++owner) {
      arrays_[owner] = segments[owner]->map_room(offset, bytes, owner == static_cast<size_t>(rank));
    }
  } catch (...) {
    unmap();
    throw;
  }
}

SharedRegion::~SharedRegion() { unmap(); }

bool SharedRegion::contains(const std::byte* data, size_t bytes) const {
  return data >= own() && data <= own() + bytes_ && bytes <= static_cast<size_t>(own() + bytes_ - data);
}

void SharedRegion::detach() {
  if (detached_) return;
  void* copy = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (copy == MAP_FAILED) throw_errno("cannot take " + std::to_string(bytes_) + " bytes of memory");
  std::memcpy(copy, own(), bytes_);
  if (mremap(copy, bytes_, bytes_, MREMAP_MAYMOVE | MREMAP_FIXED, own()) == MAP_FAILED) {
    munmap(copy, bytes_);
    throw_errno("cannot move memory out of the reach of other ranks");
  }
  detached_ = true;
}

void SharedRegion::unmap() {
  // Nobody reads this rank's array without an operation of this rank, so its memory goes back to the system at once.
  // But in the child of a fork it is the parent's.
  if (own() != nullptr && !detached_ && getpid() == process_) madvise(own(), bytes_, MADV_REMOVE);
  for (std::byte* array : arrays_) {
    if (array != nullptr) munmap(array, bytes_);
  }
}

}  // namespace hvd
