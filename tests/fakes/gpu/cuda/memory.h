// Memory of devices and pinned memory of the host.
//
// Addresses of device memory come from a range that nobody may touch; its bytes lie elsewhere, where only streams find
// them. All other addresses are memory of the host, which serves as it is: tests may say that it lies on a device.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <shared_mutex>

#include "cuda/codes.h"

namespace fake_cuda {

using Bytes = std::shared_ptr<std::byte>;

class Memory {
 public:
  // Filled with garbage; of use when make_valid() was called. `owner`: a context.
  Result allocate(const void* owner, size_t bytes, Pointer* address);
  void make_valid(Pointer address);
  // From now on no call may name it; returns kInvalidValue if it is none.
  Result begin_free(Pointer address);
  void end_free(Pointer address);

  // Whether calls may name this memory.
  [[nodiscard]] bool accepts(Pointer address, size_t bytes) const;
  // Its bytes at the time when a stream uses it; nullptr if it is not there (yet, or any more).
  [[nodiscard]] Bytes resolve(Pointer address, size_t bytes) const;

  Result pin(const void* owner, size_t bytes, void** memory);
  Result unpin(void* memory);
  // What keeps pinned memory from being used again while a copy is on its way; null for memory that is not pinned.
  [[nodiscard]] Bytes pinned(const void* memory, size_t bytes) const;

  // All that a context has ends with it.
  void drop_all_of(const void* owner);

  [[nodiscard]] size_t num_blocks() const;
  [[nodiscard]] size_t num_bytes() const;
  [[nodiscard]] size_t num_pinned() const;
  [[nodiscard]] size_t num_pinned_bytes() const;

 private:
  struct Block {
    Bytes bytes;
    size_t size = 0;
    bool valid = false;
    bool leaving = false;
    const void* owner = nullptr;
  };

  [[nodiscard]] static bool is_device_address(Pointer address);
  [[nodiscard]] const Block* find(Pointer address, size_t bytes) const;
  [[nodiscard]] Pointer find_room(size_t room);

  mutable std::shared_mutex mutex_;
  Pointer next_ = 0;
  std::map<Pointer, Block> blocks_;
  std::map<const std::byte*, Block> pinned_;
};

}  // namespace fake_cuda
