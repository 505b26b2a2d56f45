#include "backend/staged/collectives.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"

namespace hvd::staged {
namespace {

using Counts = std::vector<int64_t>;

int64_t total_of(const Counts& counts) { return std::accumulate(counts.begin(), counts.end(), int64_t{0}); }

int64_t most_of(const Counts& counts) { return counts.empty() ? 0 : *std::max_element(counts.begin(), counts.end()); }

int64_t total_of(const std::vector<Extent>& extents) {
  return std::accumulate(extents.begin(), extents.end(), int64_t{0},
                         [](int64_t sum, const Extent& extent) { return sum + extent.count; });
}

int64_t total_of(const std::vector<Range>& ranges) {
  return std::accumulate(ranges.begin(), ranges.end(), int64_t{0},
                         [](int64_t sum, const Range& range) { return sum + range.size(); });
}

int64_t total_of_parts(const Counts& counts, int64_t quantum) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0},
                         [quantum](int64_t sum, int64_t count) { return sum + std::min(count, quantum); });
}

// How many elements the chunk takes of each block.
Counts part_counts(const Counts& counts, const Cut& cut, int64_t chunk) {
  Counts parts;
  for (const int64_t count : counts) parts.push_back(part_of(count, cut, chunk).size());
  return parts;
}

// What the chunk takes of blocks that lie one after the other; without empty parts.
std::vector<Range> parts_of(const Counts& counts, const Cut& cut, int64_t chunk) {
  std::vector<Range> parts;
  int64_t begin = 0;
  for (const int64_t count : counts) {
    const Range part = part_of(count, cut, chunk);
    if (part.size() > 0) parts.push_back({begin + part.begin, begin + part.end});
    begin += count;
  }
  return parts;
}

bool lie_at_one_place(const Batch& batch) {
  return std::equal(batch.inputs.begin(), batch.inputs.end(), batch.outputs.begin(), batch.outputs.end(),
                    [](const Extent& a, const Extent& b) { return a.data == b.data && a.count == b.count; });
}

// All elements, in place in the block.
class Vector : public Chunks {
 public:
  Vector(const Batch& batch, const CutLimits& limits) : count_(total_of(batch.inputs)) {
    cut_ = cut([](int64_t quantum) { return quantum; }, count_, limits);
  }
  [[nodiscard]] int64_t num_chunks() const override { return cut_.num_chunks; }
  [[nodiscard]] Layout layout(int64_t chunk) const override {
    const Range part = part_of(count_, cut_, chunk);
    return {.inputs = {part}, .outputs = {part}, .count = part.size()};
  }

 private:
  int64_t count_;
  Cut cut_;
};

class Allreduce final : public Vector {
 public:
  using Vector::Vector;
  [[nodiscard]] std::unique_ptr<Execution> start(Backend& host, Batch batch, int64_t /*chunk*/) const override {
    return host.execute(Collective::kAllreduce, std::move(batch));
  }
};

// Only the root's values come from its device, and they go back there only if they have another place.
class Broadcast final : public Vector {
 public:
  Broadcast(const Batch& batch, const CutLimits& limits)
      : Vector(batch, limits),
        root_(batch.root),
        gives_(batch.set_rank == root_),
        takes_(!gives_ || !lie_at_one_place(batch)) {}
  [[nodiscard]] Layout layout(int64_t chunk) const override {
    Layout layout = Vector::layout(chunk);
    if (!gives_) layout.inputs.clear();
    if (!takes_) layout.outputs.clear();
    return layout;
  }
  [[nodiscard]] std::unique_ptr<Execution> start(Backend& host, Batch batch, int64_t /*chunk*/) const override {
    // The host's backend wants the whole of both.
    const std::vector<Extent>& block = gives_ ? batch.inputs : batch.outputs;
    batch.inputs = block;
    batch.outputs = batch.inputs;
    batch.root = root_;
    return host.execute(Collective::kBroadcast, std::move(batch));
  }

 private:
  int root_;
  bool gives_;
  bool takes_;
};

// counts_[r]: elements of set rank r.
class Blocks : public Chunks {
 public:
  explicit Blocks(const Batch& batch) : counts_(batch.counts), rank_(static_cast<size_t>(batch.set_rank)) {}
  [[nodiscard]] int64_t num_chunks() const override { return cut_.num_chunks; }

 protected:
  // Of this rank in a vector that holds its block alone.
  [[nodiscard]] std::vector<Range> mine(int64_t chunk) const { return parts_of({counts_[rank_]}, cut_, chunk); }

  Counts counts_;
  size_t rank_;
  Cut cut_;
};

class Reducescatter final : public Blocks {
 public:
  Reducescatter(const Batch& batch, const CutLimits& limits) : Blocks(batch) {
    const int64_t most = most_of(counts_);
    const auto footprint = [&](int64_t quantum) { return total_of_parts(counts_, quantum) + std::min(most, quantum); };
    cut_ = cut(footprint, most, limits);
  }
  [[nodiscard]] Layout layout(int64_t chunk) const override {
    Layout layout{.inputs = parts_of(counts_, cut_, chunk), .outputs = mine(chunk)};
    layout.output_at = layout.input_count();
    layout.count = layout.output_at + layout.output_count();
    return layout;
  }
  [[nodiscard]] std::unique_ptr<Execution> start(Backend& host, Batch batch, int64_t chunk) const override {
    batch.counts = part_counts(counts_, cut_, chunk);
    return host.execute(Collective::kReducescatter, std::move(batch));
  }
};

// What this rank gives comes from the device to where it belongs in the result.
class Allgather final : public Blocks {
 public:
  Allgather(const Batch& batch, const CutLimits& limits) : Blocks(batch) {
    cut_ = cut([&](int64_t quantum) { return total_of_parts(counts_, quantum); }, most_of(counts_), limits);
  }
  [[nodiscard]] Layout layout(int64_t chunk) const override {
    const Counts parts = part_counts(counts_, cut_, chunk);
    const auto before = parts.begin() + static_cast<std::ptrdiff_t>(rank_);
    return {.inputs = mine(chunk),
            .outputs = parts_of(counts_, cut_, chunk),
            .input_at = std::accumulate(parts.begin(), before, int64_t{0}),
            .count = total_of(parts)};
  }
  [[nodiscard]] std::unique_ptr<Execution> start(Backend& host, Batch batch, int64_t chunk) const override {
    batch.counts = part_counts(counts_, cut_, chunk);
    return host.execute(Collective::kAllgather, std::move(batch));
  }
};

// counts_[s][d]: elements from s to d.
class Alltoall final : public Chunks {
 public:
  Alltoall(const Batch& batch, const CutLimits& limits) : counts_(batch.splits) {
    const auto rank = static_cast<size_t>(batch.set_rank);
    std::vector<Counts> columns(counts_.size(), Counts(counts_.size()));
    int64_t longest = 0;
    for (size_t source = 0; source < counts_.size(); ++source) {
      longest = std::max(longest, most_of(counts_[source]));
      for (size_t to = 0; to < counts_.size(); ++to) columns[to][source] = counts_[source][to];
    }
    given_ = counts_[rank];
    taken_ = columns[rank];
    const auto footprint = [&](int64_t quantum) {
      int64_t most = 0;
      for (size_t r = 0; r < counts_.size(); ++r) {
        most = std::max(most, total_of_parts(counts_[r], quantum) + total_of_parts(columns[r], quantum));
      }
      return most;
    };
    cut_ = cut(footprint, longest, limits);
  }
  [[nodiscard]] int64_t num_chunks() const override { return cut_.num_chunks; }
  [[nodiscard]] Layout layout(int64_t chunk) const override {
    Layout layout{.inputs = parts_of(given_, cut_, chunk), .outputs = parts_of(taken_, cut_, chunk)};
    layout.output_at = layout.input_count();
    layout.count = layout.output_at + layout.output_count();
    return layout;
  }
  [[nodiscard]] std::unique_ptr<Execution> start(Backend& host, Batch batch, int64_t chunk) const override {
    batch.splits.clear();
    for (const Counts& row : counts_) batch.splits.push_back(part_counts(row, cut_, chunk));
    return host.execute(Collective::kAlltoall, std::move(batch));
  }

 private:
  std::vector<Counts> counts_;
  Counts given_;
  Counts taken_;
  Cut cut_;
};

}  // namespace

int64_t Layout::input_count() const { return total_of(inputs); }
int64_t Layout::output_count() const { return total_of(outputs); }

std::unique_ptr<Chunks> make_chunks(Collective collective, const Batch& batch, const CutLimits& limits) {
  switch (collective) {
    case Collective::kAllreduce:
      return std::make_unique<Allreduce>(batch, limits);
    case Collective::kAdasum:
      break;
    case Collective::kReducescatter:
      return std::make_unique<Reducescatter>(batch, limits);
    case Collective::kAllgather:
      return std::make_unique<Allgather>(batch, limits);
    case Collective::kBroadcast:
      return std::make_unique<Broadcast>(batch, limits);
    case Collective::kAlltoall:
      return std::make_unique<Alltoall>(batch, limits);
  }
  throw Error(ErrorKind::kInternal, batch.what + " cannot go through host memory in chunks");
}

}  // namespace hvd::staged
