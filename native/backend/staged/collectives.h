// What the collectives differ in when they go through host memory in chunks.
#pragma once

#include <memory>
#include <vector>

#include "backend/backend.h"
#include "backend/staged/cut.h"

namespace hvd::staged {

// Where a chunk of this rank lies: in the batch's vectors, and in its block of host memory. Parts lie there one after
// the other.
struct Layout {
  std::vector<Range> inputs;
  std::vector<Range> outputs;
  int64_t input_at = 0;   // elements from the beginning of the block
  int64_t output_at = 0;  // may be the place of the inputs
  int64_t count = 0;      // elements of host memory

  [[nodiscard]] int64_t input_count() const;
  [[nodiscard]] int64_t output_count() const;
};

// A batch in chunks.
class Chunks {
 public:
  Chunks() = default;
  Chunks(const Chunks&) = delete;
  Chunks& operator=(const Chunks&) = delete;
  virtual ~Chunks() = default;

  [[nodiscard]] virtual int64_t num_chunks() const = 0;
  [[nodiscard]] virtual Layout layout(int64_t chunk) const = 0;
  // `batch` has the memory that layout() says.
  [[nodiscard]] virtual std::unique_ptr<Execution> start(Backend& host, Batch batch, int64_t chunk) const = 0;
};

// Throws Error (kInternal) for Adasum, which is not cut: each tensor is combined as a whole.
[[nodiscard]] std::unique_ptr<Chunks> make_chunks(Collective collective, const Batch& batch, const CutLimits& limits);

}  // namespace hvd::staged
