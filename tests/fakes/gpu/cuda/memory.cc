#include "cuda/memory.h"

#include <sys/mman.h>

#include <cstring>
#include <mutex>
#include <new>

#include "cuda/settings.h"

namespace fake_cuda {
namespace {

constexpr size_t kRange = size_t{64} << 30;
constexpr size_t kAlignment = 512;
constexpr size_t kPage = 4096;
constexpr int kGarbage = 0xA5;

// Reserved for good; costs nothing.
Pointer range() {
  static void* const start = mmap(nullptr, kRange, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return start == MAP_FAILED ? 0 : reinterpret_cast<Pointer>(start);
}

Bytes make_bytes(size_t size, size_t alignment) {
  const std::align_val_t aligned{alignment};
  auto* memory = static_cast<std::byte*>(::operator new(size, aligned, std::nothrow));
  if (memory == nullptr) return nullptr;
  std::memset(memory, kGarbage, size);
  return {memory, [aligned](std::byte* bytes) { ::operator delete(bytes, aligned); }};
}

}  // namespace

bool Memory::is_device_address(Pointer address) { return range() != 0 && address - range() < kRange; }

// Addresses are used again as late as can be, so that old ones are noticed.
Pointer Memory::find_room(size_t room) {
  if (range() == 0 || room > kRange) return 0;
  Pointer start = next_ == 0 ? range() : next_;
  for (int rounds = 0; rounds < 2; ++rounds, start = range()) {
    auto after = blocks_.lower_bound(start);
    while (after != blocks_.end() && after->first < start + room) {
      start = after->first + (after->second.size + kAlignment - 1) / kAlignment * kAlignment;
      ++after;
    }
    if (start + room <= range() + kRange) return start;
  }
  return 0;
}

Result Memory::allocate(const void* owner, size_t bytes, Pointer* address) {
  if (bytes == 0 || address == nullptr) return kInvalidValue;
  Bytes memory = make_bytes(bytes, kAlignment);
  const std::lock_guard lock(mutex_);
  const size_t room = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  const Pointer found = memory == nullptr ? 0 : find_room(room);
  if (found == 0) return kOutOfMemory;
  next_ = found + room;
  blocks_[found] = {std::move(memory), bytes, false, false, owner};
  *address = found;
  return kSuccess;
}

void Memory::make_valid(Pointer address) {
  const std::lock_guard lock(mutex_);
  if (const auto block = blocks_.find(address); block != blocks_.end()) block->second.valid = true;
}

Result Memory::begin_free(Pointer address) {
  const std::lock_guard lock(mutex_);
  const auto block = blocks_.find(address);
  if (block == blocks_.end() || block->second.leaving) return kInvalidValue;
  block->second.leaving = true;
  return kSuccess;
}

void Memory::end_free(Pointer address) {
  const std::lock_guard lock(mutex_);
  blocks_.erase(address);
}

const Memory::Block* Memory::find(Pointer address, size_t bytes) const {
  auto block = blocks_.upper_bound(address);
  if (block == blocks_.begin()) return nullptr;
  --block;
  const Pointer offset = address - block->first;
  return offset <= block->second.size && bytes <= block->second.size - offset ? &block->second : nullptr;
}

bool Memory::accepts(Pointer address, size_t bytes) const {
  if (!is_device_address(address)) return address != 0 || bytes == 0;
  const std::shared_lock lock(mutex_);
  const Block* block = find(address, bytes);
  return block != nullptr && !block->leaving;
}

Bytes Memory::resolve(Pointer address, size_t bytes) const {
  auto* host = reinterpret_cast<std::byte*>(address);
  if (!is_device_address(address)) return {host, [](std::byte*) {}};
  const std::shared_lock lock(mutex_);
  auto block = blocks_.upper_bound(address);
  if (block == blocks_.begin()) return nullptr;
  --block;
  const Pointer offset = address - block->first;
  if (!block->second.valid || offset > block->second.size || bytes > block->second.size - offset) return nullptr;
  return {block->second.bytes, block->second.bytes.get() + offset};
}

Result Memory::pin(const void* owner, size_t bytes, void** memory) {
  if (bytes == 0 || memory == nullptr) return kInvalidValue;
  Bytes made = make_bytes(bytes, kPage);
  if (made == nullptr) return kOutOfMemory;
  const std::lock_guard lock(mutex_);
  *memory = made.get();
  pinned_[made.get()] = {made, bytes, true, false, owner};
  return kSuccess;
}

Result Memory::unpin(void* memory) {
  const std::lock_guard lock(mutex_);
  const auto block = pinned_.find(static_cast<std::byte*>(memory));
  if (block == pinned_.end()) return kInvalidValue;
  if (block->second.bytes.use_count() > 1) note_wrong_use("pinned memory was freed while a copy used it");
  pinned_.erase(block);
  return kSuccess;
}

Bytes Memory::pinned(const void* memory, size_t bytes) const {
  const std::shared_lock lock(mutex_);
  const auto* start = static_cast<const std::byte*>(memory);
  auto block = pinned_.upper_bound(start);
  if (block == pinned_.begin()) return nullptr;
  --block;
  const auto offset = static_cast<size_t>(start - block->first);
  if (offset > block->second.size || bytes > block->second.size - offset) return nullptr;
  return {block->second.bytes, block->second.bytes.get() + offset};
}

void Memory::drop_all_of(const void* owner) {
  const std::lock_guard lock(mutex_);
  const auto is_its = [&](const auto& entry) { return entry.second.owner == owner; };
  std::erase_if(blocks_, is_its);
  std::erase_if(pinned_, is_its);
}

size_t Memory::num_blocks() const {
  const std::shared_lock lock(mutex_);
  return blocks_.size();
}

size_t Memory::num_bytes() const {
  const std::shared_lock lock(mutex_);
  size_t total = 0;
  for (const auto& [address, block] : blocks_) total += block.size;
  return total;
}

size_t Memory::num_pinned() const {
  const std::shared_lock lock(mutex_);
  return pinned_.size();
}

size_t Memory::num_pinned_bytes() const {
  const std::shared_lock lock(mutex_);
  size_t total = 0;
  for (const auto& [address, block] : pinned_) total += block.size;
  return total;
}

}  // namespace fake_cuda
