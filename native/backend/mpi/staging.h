// Contiguous memory for what MPI cannot take where it lies: several tensors at once, or values in another dtype. Kept
// for the next batch, since the pages of fresh memory cost as much as the copy.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

namespace hvd::mpi {

struct Staging {
  std::unique_ptr<std::byte[]> memory;
  size_t bytes = 0;

  [[nodiscard]] std::byte* data() const { return memory.get(); }
};

class StagingPool {
 public:
  // The smallest that is large enough, or a new one.
  [[nodiscard]] Staging take(size_t bytes);
  void give_back(Staging staging);

 private:
  std::vector<Staging> free_;
};

}  // namespace hvd::mpi
