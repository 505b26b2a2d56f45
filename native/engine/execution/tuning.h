// Tunes the fusion threshold while a job trains, on the coordinator of all ranks.
#pragma once

#include <memory>
#include <optional>
#include <utility>

#include "base/log.h"
#include "engine/execution/autotuner.h"
#include "engine/execution/step_marker.h"
#include "engine/submission/counters.h"
#include "engine/submission/operation.h"

namespace hvd {

class Tuning {
 public:
  // Without options it does nothing.
  Tuning(const std::optional<AutotuneOptions>& options, LogSink log, Counters& counters)
      : autotuner_(options ? std::make_unique<Autotuner>(*options) : nullptr),
        log_(std::move(log)),
        counters_(counters) {}

  // An operation of this process set was agreed on. Returns the threshold to go on with, if a new step begins.
  [[nodiscard]] std::optional<size_t> note_answer(uint32_t set, const Operation& operation);
  // A batch of this process set was executed.
  void note_batch(uint32_t set, const std::vector<std::shared_ptr<Operation>>& operations, TimePoint started);

 private:
  [[nodiscard]] bool takes(uint32_t set, const Operation& operation) const {
    return autotuner_ != nullptr && !autotuner_->finished() && set == 0 && operation.spec.kind == OpKind::kAllreduce;
  }

  const std::unique_ptr<Autotuner> autotuner_;
  const LogSink log_;
  Counters& counters_;
  StepMarker steps_;
};

}  // namespace hvd
