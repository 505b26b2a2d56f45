// Memory for payloads that arrive, used again and again: the block that was given back last comes out first, because
// it is still in the cache.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <vector>

namespace hvd {

class BlockPool {
 public:
  using Block = std::unique_ptr<std::byte[]>;

  // A block of at least `bytes`.
  [[nodiscard]] Block take(size_t bytes);
  // Takes a block back that was taken for `bytes`.
  void give_back(Block block, size_t bytes);

  // Of all blocks that lie here.
  [[nodiscard]] size_t idle_bytes() const { return idle_bytes_; }

 private:
  static constexpr size_t kNumClasses = 8;  // each twice as long as the one before

  std::array<std::vector<Block>, kNumClasses> idle_;
  size_t idle_bytes_ = 0;
};

}  // namespace hvd
