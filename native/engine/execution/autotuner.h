// Finds the fusion threshold that moves most bytes per time, while a job trains: a state machine without threads that
// the coordinator of the global process set asks, as it alone composes batches.
//
// It measures some steps at the initial threshold, and what a batch costs there: a + b * bytes. From that and the
// number of tensors in a step follows the threshold to try first. Caches and overlap are not in that formula, so other
// powers of two MiB are tried as well. At last the best one and the initial one take turns, and the best one stays only
// if it is better by more than noise. All this takes 50 steps at most.
#pragma once

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/error.h"

namespace hvd {

struct AutotuneOptions {
  size_t initial_threshold = size_t{64} << 20;  // bytes
  bool fixed = false;                           // the user chose the threshold: it is never changed
  int warmup_samples = 3;                       // steps at the beginning that are not measured
  int steps_per_sample = 10;                    // most steps that are measured in a row at one threshold
  int max_samples = 20;                         // most such rows; below 6 nothing is tuned
  std::string log_path;                         // CSV; empty: none
};

// What a batch costs, as far as a straight line tells: least squares over batches.
class BatchCost {
 public:
  struct Line {
    double batch_ns;     // a: of each batch
    double ns_per_byte;  // b
  };

  void add(double bytes, double ns);
  // Nothing if all batches were of one size: then a and b cannot be told apart.
  [[nodiscard]] std::optional<Line> fit() const;

 private:
  double count_ = 0;
  double mean_bytes_ = 0;
  double mean_ns_ = 0;
  double bytes_bytes_ = 0;  // sum of squared differences to the mean
  double bytes_ns_ = 0;
};

class Autotuner {
 public:
  // Throws Error (kUsage) if the log cannot be written.
  explicit Autotuner(AutotuneOptions options);

  // An allreduce of the global process set was executed.
  void record_batch(size_t bytes, size_t num_tensors, TimePoint started, TimePoint finished);
  // A step ended and the next one begins. The first call only begins a step. May change fusion_threshold().
  void step_ended(TimePoint now);

  // What to compose batches with from now on, in bytes.
  [[nodiscard]] size_t fusion_threshold() const { return threshold_; }
  // Nothing will change any more.
  [[nodiscard]] bool finished() const { return finished_; }
  // What was decided and why, for the log; empty before that.
  [[nodiscard]] const std::string& reason() const { return reason_; }
  // Why the log ends early; once. The tuning goes on without it.
  [[nodiscard]] std::optional<Error> error() { return std::exchange(error_, std::nullopt); }

 private:
  enum class Stage : uint8_t { kBaseline, kSearch, kConfirm };
  struct Probe {
    size_t threshold;
    std::vector<double> scores;  // bytes per microsecond of each step
  };

  // The current threshold was measured often enough: what next?
  void end_sample();
  void sample(size_t probe, int num_steps);
  [[nodiscard]] bool search();
  [[nodiscard]] std::optional<size_t> next_candidate() const;
  [[nodiscard]] int lowest_good_exponent() const;
  [[nodiscard]] std::optional<size_t> untried(int exponent) const;
  [[nodiscard]] size_t predicted_threshold() const;
  [[nodiscard]] int largest_exponent() const;
  [[nodiscard]] size_t best_probe() const;
  void begin_confirmation(size_t best);
  void decide();
  void finish(size_t threshold, double score, const std::string& reason);
  void log(size_t threshold, double score);

  const AutotuneOptions options_;
  std::ofstream log_;
  std::optional<Error> error_;
  size_t threshold_;
  bool finished_ = false;
  std::string reason_;

  std::optional<TimePoint> step_began_;
  size_t step_bytes_ = 0;
  size_t step_tensors_ = 0;
  int num_steps_ = 0;

  Stage stage_ = Stage::kBaseline;
  std::vector<Probe> probes_;  // in front the initial threshold
  size_t probe_ = 0;           // which one is measured
  int num_unmeasured_ = 0;     // steps to go that do not count
  int num_measured_ = 0;       // steps to go that do
  int num_searches_ = 0;       // samples to go
  int num_confirmations_ = 0;  // samples to go
  size_t candidate_ = 0;       // the probe that is compared with the initial one

  // Of the steps at the initial threshold.
  BatchCost cost_;
  double baseline_bytes_ = 0;
  double baseline_tensors_ = 0;
  size_t largest_step_bytes_ = 0;
};

}  // namespace hvd
