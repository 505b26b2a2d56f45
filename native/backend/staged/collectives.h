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

class Collective {
 public:
  Collective() = default;
  Collective(const Collective&) = delete;
  Collective& operator=(const Collective&) = delete;
  virtual ~Collective() = default;

  [[nodiscard]] virtual int64_t num_chunks() const = 0;
  [[nodiscard]] virtual Layout layout(int64_t chunk) const = 0;
  // `batch` has the memory that layout() says.
  [[nodiscard]] virtual std::unique_ptr<Execution> start(Backend& host, Batch batch, int64_t chunk) const = 0;
};

[[nodiscard]] std::unique_ptr<Collective> make_allreduce(const Batch& batch, const CutLimits& limits);
[[nodiscard]] std::unique_ptr<Collective> make_broadcast(const Batch& batch, int root_set_rank,
                                                         const CutLimits& limits);
[[nodiscard]] std::unique_ptr<Collective> make_reducescatter(const Batch& batch, std::vector<int64_t> counts,
                                                             const CutLimits& limits);
[[nodiscard]] std::unique_ptr<Collective> make_allgather(const Batch& batch, std::vector<int64_t> counts,
                                                         const CutLimits& limits);
[[nodiscard]] std::unique_ptr<Collective> make_alltoall(const Batch& batch, std::vector<std::vector<int64_t>> counts,
                                                        const CutLimits& limits);

}  // namespace hvd::staged
