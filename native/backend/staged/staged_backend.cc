#include "backend/staged/staged_backend.h"

#include <algorithm>

#include "backend/staged/staged_execution.h"

namespace hvd {
namespace {

// Less is not worth a copy of its own.
constexpr size_t kLeastChunkBytes = size_t{512} << 10;

}  // namespace

class StagedBackend::State {
 public:
  State(Backend& host, StagedOptions options, std::function<void()> ring)
      : host_(host), options_(options), bell_(std::make_shared<Bell>(std::move(ring))) {}
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() { bell_->silence(); }

  void remove(uint32_t id) { sets_.erase(id); }

  [[nodiscard]] staged::CutLimits limits_for(DType dtype) const {
    const auto elements = [dtype](size_t bytes) { return static_cast<int64_t>(bytes / size_of(dtype)); };
    return {.least = std::max<int64_t>(elements(std::min(kLeastChunkBytes, options_.chunk_bytes)), 1),
            .most = elements(options_.chunk_bytes)};
  }

  std::unique_ptr<Execution> execute(Batch batch, std::unique_ptr<staged::Chunks> chunks) {
    staged::Means means = means_for(batch);
    const uint32_t first = take_sequence(batch, static_cast<uint32_t>(chunks->num_chunks()));
    return staged::execute_in_chunks(std::move(means), std::move(batch), std::move(chunks), first);
  }

  std::unique_ptr<Execution> execute_adasum(Batch batch) {
    staged::Means means = means_for(batch);
    const uint32_t sequence = take_sequence(batch, 1);
    return staged::execute_adasum(std::move(means), std::move(batch), sequence);
  }

 private:
  struct Set {
    uint32_t next_sequence = 0;
    std::shared_ptr<staged::BlockQueue> queue = std::make_shared<staged::BlockQueue>();
  };

  uint32_t take_sequence(const Batch& batch, uint32_t how_many) {
    uint32_t& next = sets_[batch.set].next_sequence;
    next += how_many;
    return next - how_many;
  }

  [[nodiscard]] staged::Means means_for(const Batch& batch) {
    std::shared_ptr<staged::Site>& site = sites_[batch.gpu->device()];
    if (site == nullptr) {
      const size_t blocks = std::max<size_t>(options_.max_pinned_bytes / options_.chunk_bytes, 1);
      site = std::make_shared<staged::Site>(batch.gpu, options_.chunk_bytes, blocks);
    }
    return {.host = host_, .site = site, .queue = sets_[batch.set].queue, .bell = bell_, .keeper = keeper_};
  }

  Backend& host_;
  StagedOptions options_;
  std::shared_ptr<Bell> bell_;
  std::map<int, std::shared_ptr<staged::Site>> sites_;  // by device
  std::map<uint32_t, Set> sets_;
  std::shared_ptr<staged::Keeper> keeper_ = std::make_shared<staged::Keeper>();  // ends before the pools do
};

StagedBackend::StagedBackend(Backend& host, StagedOptions options, std::function<void()> ring)
    : state_(std::make_unique<State>(host, options, std::move(ring))) {}

StagedBackend::~StagedBackend() = default;

void StagedBackend::remove_process_set(uint32_t id) { state_->remove(id); }

std::unique_ptr<Execution> StagedBackend::execute(Collective collective, Batch batch) {
  if (collective == Collective::kAdasum) return state_->execute_adasum(std::move(batch));
  auto chunks = staged::make_chunks(collective, batch, state_->limits_for(batch.dtype));
  return state_->execute(std::move(batch), std::move(chunks));
}

}  // namespace hvd
