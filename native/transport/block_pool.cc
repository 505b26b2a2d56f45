#include "transport/block_pool.h"

#include <algorithm>
#include <bit>

namespace hvd {
namespace {

constexpr size_t kLeastBlock = size_t{4} << 10;
constexpr size_t kMostIdleBytes = size_t{4} << 20;

size_t class_of(size_t bytes) {
  const size_t units = std::max<size_t>((bytes + kLeastBlock - 1) / kLeastBlock, 1);
  return static_cast<size_t>(std::bit_width(units - 1));
}

size_t bytes_of(size_t size_class) { return kLeastBlock << size_class; }

}  // namespace

BlockPool::Block BlockPool::take(size_t bytes) {
  const size_t size_class = class_of(bytes);
  if (size_class >= kNumClasses) return std::make_unique_for_overwrite<std::byte[]>(bytes);
  auto& idle = idle_[size_class];
  if (idle.empty()) return std::make_unique_for_overwrite<std::byte[]>(bytes_of(size_class));
  Block block = std::move(idle.back());
  idle.pop_back();
  idle_bytes_ -= bytes_of(size_class);
  return block;
}

void BlockPool::give_back(Block block, size_t bytes) {
  const size_t size_class = class_of(bytes);
  if (size_class >= kNumClasses || idle_bytes_ + bytes_of(size_class) > kMostIdleBytes) return;
  idle_bytes_ += bytes_of(size_class);
  idle_[size_class].push_back(std::move(block));
}

}  // namespace hvd
