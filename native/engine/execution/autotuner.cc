#include "engine/execution/autotuner.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cmath>
#include <sstream>
#include <system_error>

namespace hvd {
namespace {

// Without warm-up: 7 steps of baseline, 5 samples of search with 1 + 3 steps, 4 samples of confirmation with 1 + 4; the
// first step after a change counts for neither threshold.
constexpr int kMostSteps = 47;
constexpr int kBaselineSteps = 7;
constexpr int kSearchSteps = 3;
constexpr int kMostSearches = 5;
constexpr int kConfirmationSteps = 4;
constexpr int kConfirmations = 4;

constexpr size_t kMiB = size_t{1} << 20;
constexpr int kMostExponent = 8;  // 256 MiB

// What is not better by this much is not worth a change.
constexpr double kLeastGain = 1.03;
constexpr double kNoiseDeviations = 2;
// Thresholds that the formula takes for equally good: then the smaller one, which starts to move data earlier.
constexpr double kSameCost = 1.01;

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 != 0) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

// The median distance of the values to their median.
double noise_of(const std::vector<double>& values) {
  const double middle = median(values);
  std::vector<double> distances;
  for (const double value : values) distances.push_back(std::abs(value - middle));
  return median(std::move(distances));
}

size_t threshold_of(int exponent) { return kMiB << exponent; }

int exponent_of(size_t threshold) {
  const double mebibytes = static_cast<double>(threshold) / static_cast<double>(kMiB);
  return mebibytes <= 1 ? 0 : std::min(kMostExponent, static_cast<int>(std::lround(std::log2(mebibytes))));
}

std::string in_mebibytes(size_t bytes) {
  std::ostringstream text;
  text << static_cast<double>(bytes) / static_cast<double>(kMiB) << " MiB";
  return text.str();
}

}  // namespace

void BatchCost::add(double bytes, double ns) {
  // Welford's update: sums of squares as such would lose the digits that count.
  count_ += 1;
  const double from_old_mean = bytes - mean_bytes_;
  mean_bytes_ += from_old_mean / count_;
  bytes_bytes_ += from_old_mean * (bytes - mean_bytes_);
  bytes_ns_ += from_old_mean * (ns - mean_ns_) * (count_ - 1) / count_;
  mean_ns_ += (ns - mean_ns_) / count_;
}

std::optional<BatchCost::Line> BatchCost::fit() const {
  if (bytes_bytes_ <= 0) return std::nullopt;
  const double ns_per_byte = bytes_ns_ / bytes_bytes_;
  return Line{.batch_ns = mean_ns_ - ns_per_byte * mean_bytes_, .ns_per_byte = ns_per_byte};
}

Autotuner::Autotuner(AutotuneOptions options) : options_(std::move(options)), threshold_(options_.initial_threshold) {
  if (!options_.log_path.empty()) {
    log_.open(options_.log_path, std::ios::trunc);
    log_ << "hierarchical_allreduce,hierarchical_allgather,torus_allreduce,cache_enabled,cycle_time_ms,"
            "tensor_fusion_threshold,score\n"
         << std::flush;
    if (!log_) {
      throw Error(ErrorKind::kUsage, "the log of autotune cannot be written to " + options_.log_path + ": " +
                                         std::generic_category().message(errno) +
                                         "; the coordinator needs the name of a file that it may create");
    }
  }
  probes_.push_back({.threshold = threshold_, .scores = {}});
  num_searches_ = std::min(kMostSearches, options_.max_samples - 1 - kConfirmations);
  if (options_.fixed) {
    finish(threshold_, 0, "the user chose it");
  } else if (num_searches_ < 1) {
    finish(threshold_, 0, "too few samples are allowed to compare it with another one");
  } else {
    sample(0, kBaselineSteps);
    num_unmeasured_ = std::max(0, options_.warmup_samples);
  }
}

void Autotuner::record_batch(size_t bytes, size_t num_tensors, TimePoint started, TimePoint finished) {
  if (finished_) return;
  step_bytes_ += bytes;
  step_tensors_ += num_tensors;
  if (stage_ != Stage::kBaseline || num_unmeasured_ > 0) return;
  cost_.add(static_cast<double>(bytes), static_cast<double>((finished - started).count()));
}

void Autotuner::step_ended(TimePoint now) {
  if (finished_) return;
  const auto bytes = static_cast<double>(std::exchange(step_bytes_, 0));
  const auto tensors = static_cast<double>(std::exchange(step_tensors_, 0));
  const std::optional<TimePoint> began = std::exchange(step_began_, now);
  if (!began) return;
  ++num_steps_;
  const double microseconds = std::chrono::duration<double, std::micro>(now - *began).count();
  if (num_unmeasured_ > 0) {
    --num_unmeasured_;
  } else if (bytes > 0 && microseconds > 0) {
    probes_[probe_].scores.push_back(bytes / microseconds);
    if (stage_ == Stage::kBaseline) {
      baseline_bytes_ += bytes;
      baseline_tensors_ += tensors;
      largest_step_bytes_ = std::max(largest_step_bytes_, static_cast<size_t>(bytes));
    }
    if (--num_measured_ == 0) end_sample();
  }
  if (!finished_ && num_steps_ >= std::max(0, options_.warmup_samples) + kMostSteps) {
    finish(options_.initial_threshold, median(probes_.front().scores),
           "too many steps moved nothing to decide in time");
  }
}

void Autotuner::end_sample() {
  const Probe& probe = probes_[probe_];
  log(probe.threshold, median(probe.scores));
  if (stage_ == Stage::kConfirm) {
    if (num_confirmations_ == 0) {
      decide();
    } else {
      --num_confirmations_;
      sample(probe_ == 0 ? candidate_ : 0, kConfirmationSteps);
    }
    return;
  }
  stage_ = Stage::kSearch;
  if (search()) return;
  const size_t best = best_probe();
  const double initial_score = median(probes_.front().scores);
  if (median(probes_[best].scores) > kLeastGain * initial_score) {
    begin_confirmation(best);
  } else {
    finish(options_.initial_threshold, initial_score, "no other one that was tried is better");
  }
}

void Autotuner::sample(size_t probe, int num_steps) {
  probe_ = probe;
  threshold_ = probes_[probe].threshold;
  num_unmeasured_ = 1;
  num_measured_ = std::clamp(options_.steps_per_sample, 1, num_steps);
}

// Goes on with a threshold that was not tried; returns whether there was one.
bool Autotuner::search() {
  if (num_searches_ == 0) return false;
  const std::optional<size_t> candidate = next_candidate();
  if (!candidate) return false;
  --num_searches_;
  probes_.push_back({.threshold = *candidate, .scores = {}});
  sample(probes_.size() - 1, kSearchSteps);
  return true;
}

// First what the formula says; then down in factors of four, over plateaus, as long as it does not get worse; then up;
// and last what lies between.
std::optional<size_t> Autotuner::next_candidate() const {
  if (probes_.size() == 1) {
    if (const auto first = untried(exponent_of(predicted_threshold()))) return first;
  }
  const int best = std::min(largest_exponent(), exponent_of(probes_[best_probe()].threshold));
  for (const int exponent : {lowest_good_exponent() - 2, best + 2, best + 1, best - 1}) {
    if (const auto candidate = untried(exponent)) return candidate;
  }
  return std::nullopt;
}

// Of the smallest threshold that was tried and is about as good as the best one.
int Autotuner::lowest_good_exponent() const {
  const double best = median(probes_[best_probe()].scores);
  int lowest = largest_exponent();
  for (const Probe& probe : probes_) {
    if (median(probe.scores) * kLeastGain > best) lowest = std::min(lowest, exponent_of(probe.threshold));
  }
  return lowest;
}

// The threshold of this exponent, unless one was tried that makes the same batches.
std::optional<size_t> Autotuner::untried(int exponent) const {
  const size_t threshold = threshold_of(std::clamp(exponent, 0, largest_exponent()));
  const bool takes_all = threshold >= largest_step_bytes_;
  for (const Probe& probe : probes_) {
    if (probe.threshold == threshold || (takes_all && probe.threshold >= largest_step_bytes_)) return std::nullopt;
  }
  return threshold;
}

// The smallest threshold that makes a step as cheap as the formula allows: a for each batch, b for each byte.
size_t Autotuner::predicted_threshold() const {
  const std::optional<BatchCost::Line> line = cost_.fit();
  if (!line) return threshold_of(largest_exponent());
  if (line->batch_ns <= 0) return options_.initial_threshold;
  const double num_steps = static_cast<double>(probes_.front().scores.size());
  const double num_tensors = std::max(1.0, baseline_tensors_ / num_steps);
  const double step_bytes = baseline_bytes_ / num_steps;
  const auto cost = [&](size_t threshold) {
    const double per_batch = std::max(1.0, std::floor(static_cast<double>(threshold) * num_tensors / step_bytes));
    return line->batch_ns * std::ceil(num_tensors / per_batch) + std::max(0.0, line->ns_per_byte) * step_bytes;
  };
  int exponent = largest_exponent();
  const double least = cost(threshold_of(exponent));
  while (exponent > 0 && cost(threshold_of(exponent - 1)) <= kSameCost * least) --exponent;
  return threshold_of(exponent);
}

// The first that takes a whole step; beyond it nothing changes.
int Autotuner::largest_exponent() const {
  const size_t mebibytes = (largest_step_bytes_ + kMiB - 1) / kMiB;
  return std::min(kMostExponent, static_cast<int>(std::bit_width(std::max<size_t>(mebibytes, 1) - 1)));
}

size_t Autotuner::best_probe() const {
  size_t best = 0;
  for (size_t i = 1; i < probes_.size(); ++i) {
    if (median(probes_[i].scores) > median(probes_[best].scores)) best = i;
  }
  return best;
}

void Autotuner::begin_confirmation(size_t best) {
  stage_ = Stage::kConfirm;
  candidate_ = best;
  num_confirmations_ = kConfirmations - 1;
  // Only new steps count: what won a search among several was lucky, too.
  probes_.front().scores.clear();
  probes_[best].scores.clear();
  sample(best, kConfirmationSteps);
}

void Autotuner::decide() {
  const Probe& initial = probes_.front();
  const Probe& best = probes_[candidate_];
  const double before = median(initial.scores);
  const double after = median(best.scores);
  const double noise = std::max(noise_of(initial.scores), noise_of(best.scores));
  std::ostringstream change;
  change << in_mebibytes(best.threshold) << " moved " << (after / before - 1) * 100 << " % more per time than "
         << in_mebibytes(initial.threshold) << ", where steps differ by " << noise / before * 100 << " %";
  if (after > kLeastGain * before && after - before > kNoiseDeviations * noise) {
    finish(best.threshold, after, change.str());
  } else {
    finish(initial.threshold, before, change.str());
  }
}

void Autotuner::finish(size_t threshold, double score, const std::string& reason) {
  threshold_ = threshold;
  finished_ = true;
  const bool changed = threshold != options_.initial_threshold;
  reason_ = "fusion threshold " + in_mebibytes(threshold) + (changed ? ", changed: " : ", as it was: ") + reason;
  log(threshold, score);
}

void Autotuner::log(size_t threshold, double score) {
  if (!log_.is_open()) return;
  // Columns of settings that do not exist here are 0.
  log_ << "0,0,0,0,0," << threshold << "," << score << "\n" << std::flush;
  if (log_) return;
  error_.emplace(ErrorKind::kInternal,
                 "the log of autotune " + options_.log_path + " ends early: " + std::generic_category().message(errno));
  log_.close();
}

}  // namespace hvd
