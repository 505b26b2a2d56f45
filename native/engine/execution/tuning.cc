#include "engine/execution/tuning.h"

namespace hvd {

std::optional<size_t> Tuning::note_answer(uint32_t set, const Operation& operation) {
  if (!takes(set, operation) || !steps_.note(operation.spec.name)) return std::nullopt;
  autotuner_->step_ended(std::chrono::steady_clock::now());
  if (autotuner_->finished()) {
    counters_.tuned_threshold.store(autotuner_->fusion_threshold(), std::memory_order_relaxed);
    log_(LogLevel::kInfo, "autotune: " + autotuner_->reason());
  }
  if (const auto error = autotuner_->error()) log_(LogLevel::kWarning, error->what());
  return autotuner_->fusion_threshold();
}

void Tuning::note_batch(uint32_t set, const std::vector<std::shared_ptr<Operation>>& operations, TimePoint started) {
  if (!takes(set, *operations.front())) return;
  size_t bytes = 0;
  for (const auto& operation : operations) bytes += operation->spec.total_bytes();
  autotuner_->record_batch(bytes, operations.size(), started, std::chrono::steady_clock::now());
}

}  // namespace hvd
