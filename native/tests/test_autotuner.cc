#include <unistd.h>

#include <cmath>
#include <fstream>
#include <functional>
#include <numeric>
#include <random>
#include <sstream>

#include "engine/agreement/fuser.h"
#include "engine/execution/autotuner.h"
#include "testing/check.h"

namespace hvd {
namespace {

constexpr size_t kMiB = size_t{1} << 20;
constexpr int kMostSteps = 50;

// A job that computes for a while and then reduces all its tensors, batch after batch.
struct Machine {
  std::vector<size_t> tensors;
  double compute_ns = 5e6;
  std::function<double(size_t bytes)> batch_ns;
  double noise = 0;  // relative standard deviation of each batch and computation

  // One step; without a tuner all noise is left out.
  double step_ns(size_t threshold, Autotuner* tuner, TimePoint began, std::mt19937_64& random) const {
    std::vector<FusionCandidate> candidates;
    for (const size_t bytes : tensors) candidates.push_back({.key = 1, .bytes = bytes});
    std::normal_distribution<double> spread(1, tuner == nullptr ? 0 : noise);
    double now = compute_ns * std::max(0.1, spread(random));
    for (const auto& batch : fuse(candidates, threshold)) {
      const size_t bytes = std::accumulate(batch.begin(), batch.end(), size_t{0},
                                           [&](size_t sum, size_t i) { return sum + tensors[i]; });
      const double before = now;
      now += batch_ns(bytes) * std::max(0.1, spread(random));
      if (tuner == nullptr) continue;
      tuner->record_batch(bytes, batch.size(), began + Duration(std::llround(before)),
                          began + Duration(std::llround(now)));
    }
    return now;
  }

  [[nodiscard]] double quiet_step_ns(size_t threshold) const {
    std::mt19937_64 unused;
    return step_ns(threshold, nullptr, TimePoint(), unused);
  }
  [[nodiscard]] double best_step_ns() const {
    double best = quiet_step_ns(kMiB);
    for (int exponent = 1; exponent <= 8; ++exponent) best = std::min(best, quiet_step_ns(kMiB << exponent));
    return best;
  }
};

std::function<double(size_t)> line(double batch_ns, double ns_per_byte) {
  return [=](size_t bytes) { return batch_ns + ns_per_byte * static_cast<double>(bytes); };
}

// A line that becomes steeper beyond `knee` bytes, where a batch does not fit into the cache any more.
std::function<double(size_t)> knee(double batch_ns, double ns_per_byte, size_t at, double factor) {
  return [=](size_t bytes) {
    const double rate = bytes > at ? ns_per_byte * factor : ns_per_byte;
    return batch_ns + rate * static_cast<double>(bytes);
  };
}

std::vector<size_t> equal_tensors(size_t count, size_t bytes) { return std::vector<size_t>(count, bytes); }

// Sizes as in a real model: a few large, many small.
std::vector<size_t> mixed_tensors(size_t count, size_t total, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::lognormal_distribution<double> sizes(0, 2);
  std::vector<double> weights(count);
  for (double& weight : weights) weight = sizes(random);
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<size_t> tensors;
  for (const double weight : weights)
    tensors.push_back(64 + static_cast<size_t>(weight / sum * static_cast<double>(total)));
  return tensors;
}

// Lets the tuner see steps until it is finished; returns how many it took.
int tune(Autotuner& tuner, const Machine& machine, uint64_t seed) {
  std::mt19937_64 random(seed);
  TimePoint now(std::chrono::hours(1));
  tuner.step_ended(now);
  int num_steps = 0;
  for (; !tuner.finished() && num_steps < 1000; ++num_steps) {
    now += Duration(std::llround(machine.step_ns(tuner.fusion_threshold(), &tuner, now, random)));
    tuner.step_ended(now);
  }
  return num_steps;
}

AutotuneOptions starting_at(size_t threshold) {
  AutotuneOptions options;
  options.initial_threshold = threshold;
  return options;
}

// Whether the tuner ends in time with a step that takes at most 5 % more than the best one would.
void check_converges(const Machine& machine, size_t initial, uint64_t seed) {
  Autotuner tuner(starting_at(initial));
  CHECK(tune(tuner, machine, seed) <= kMostSteps);
  REQUIRE(tuner.finished());
  const double got = machine.quiet_step_ns(tuner.fusion_threshold());
  const double best = machine.best_step_ns();
  if (got <= 1.05 * best) return;
  std::ostringstream text;
  text << "seed " << seed << ", from " << initial / kMiB << " MiB: " << tuner.reason() << "; the step takes "
       << got / best << " of the best one";
  testing::report(__FILE__, __LINE__, text.str());
}

TEST("autotune: batches cost what a line says") {
  BatchCost cost;
  CHECK(!cost.fit().has_value());
  cost.add(1e9, 2e6);
  cost.add(1e9, 3e6);
  CHECK(!cost.fit().has_value());
  BatchCost exact;
  for (const double bytes : {1e6, 2e6, 64e6, 3e3}) exact.add(bytes, 50'000 + 0.25 * bytes);
  REQUIRE(exact.fit().has_value());
  CHECK(std::abs(exact.fit()->batch_ns - 50'000) < 1);
  CHECK(std::abs(exact.fit()->ns_per_byte - 0.25) < 1e-6);
}

TEST("autotune: costly batches lead to a larger threshold") {
  for (const size_t initial : {kMiB / 4, kMiB, 4 * kMiB, 3'000'000UL}) {
    for (uint64_t seed = 0; seed < 10; ++seed) {
      check_converges({equal_tensors(400, 256 << 10), 5e6, line(2e6, 0.2), 0.01}, initial, seed);
      check_converges({mixed_tensors(160, 100 * kMiB, seed), 2e7, line(1e6, 0.3), 0.01}, initial, seed);
    }
  }
}

TEST("autotune: batches that leave the cache lead to a smaller threshold") {
  for (const size_t initial : {64 * kMiB, 128 * kMiB, 16 * kMiB}) {
    for (uint64_t seed = 0; seed < 10; ++seed) {
      check_converges({equal_tensors(800, 256 << 10), 5e6, knee(1e5, 0.2, 8 * kMiB, 2), 0.01}, initial, seed);
      check_converges({mixed_tensors(500, 200 * kMiB, 1), 5e6, knee(2e5, 0.2, 33 * kMiB, 1.6), 0.01}, initial, seed);
    }
  }
}

TEST("autotune: where nothing is to be gained, nothing changes") {
  const Machine computes{equal_tensors(100, kMiB), 1e9, line(1e5, 0.2), 0.01};
  const Machine free_batches{equal_tensors(100, kMiB), 5e6, line(0, 0.2), 0.01};
  for (const Machine& machine : {computes, free_batches}) {
    for (uint64_t seed = 0; seed < 20; ++seed) {
      Autotuner tuner(starting_at(64 * kMiB));
      CHECK(tune(tuner, machine, seed) <= kMostSteps);
      CHECK_EQ(tuner.fusion_threshold(), 64 * kMiB);
      CHECK(tuner.reason().find("as it was") != std::string::npos);
    }
  }
}

TEST("autotune: a step that fits into one batch is left alone at once") {
  Autotuner tuner(starting_at(64 * kMiB));
  CHECK_EQ(tune(tuner, {equal_tensors(10, 4 << 10), 1e6, line(1e5, 0.2), 0.05}, 1), 10);
  CHECK_EQ(tuner.fusion_threshold(), 64 * kMiB);
}

TEST("autotune: noise neither changes a good threshold nor makes it worse") {
  int num_changed = 0;
  const Machine flat{equal_tensors(100, kMiB), 5e6, line(0, 0.2), 0.2};
  const Machine steep{equal_tensors(100, kMiB), 5e6, line(2e6, 0.2), 0.1};
  for (uint64_t seed = 0; seed < 200; ++seed) {
    Autotuner tuner(starting_at(64 * kMiB));
    CHECK(tune(tuner, flat, seed) <= kMostSteps);
    num_changed += tuner.fusion_threshold() == 64 * kMiB ? 0 : 1;
    Autotuner other(starting_at(4 * kMiB));
    CHECK(tune(other, steep, seed) <= kMostSteps);
    CHECK(steep.quiet_step_ns(other.fusion_threshold()) < 1.02 * steep.quiet_step_ns(4 * kMiB));
  }
  CHECK(num_changed <= 10);
}

TEST("autotune: outliers do not count") {
  Autotuner tuner(starting_at(kMiB));
  const Machine machine{equal_tensors(400, 256 << 10), 5e6, line(2e6, 0.2), 0.01};
  std::mt19937_64 random(1);
  TimePoint now(std::chrono::hours(1));
  tuner.step_ended(now);
  for (int i = 0; !tuner.finished(); ++i) {
    now += Duration(std::llround(machine.step_ns(tuner.fusion_threshold(), &tuner, now, random)));
    if (i % 7 == 0) now += std::chrono::seconds(3);
    tuner.step_ended(now);
  }
  CHECK(machine.quiet_step_ns(tuner.fusion_threshold()) < 1.05 * machine.best_step_ns());
}

TEST("autotune: what the user chose stays") {
  AutotuneOptions options = starting_at(3 * kMiB);
  options.fixed = true;
  Autotuner tuner(options);
  CHECK(tuner.finished());
  CHECK_EQ(tune(tuner, {equal_tensors(400, 256 << 10), 5e6, line(2e6, 0.2), 0}, 1), 0);
  CHECK_EQ(tuner.fusion_threshold(), 3 * kMiB);
}

TEST("autotune: steps that move nothing end in giving up") {
  Autotuner tuner(starting_at(8 * kMiB));
  CHECK_EQ(tune(tuner, {{}, 5e6, line(1, 1), 0}, 1), kMostSteps);
  CHECK_EQ(tuner.fusion_threshold(), 8 * kMiB);
}

TEST("autotune: any settings end, and fewer samples take fewer steps") {
  const Machine machine{equal_tensors(400, 256 << 10), 5e6, line(2e6, 0.2), 0.01};
  for (const int steps : {-1, 0, 1, 2, 10, 1000}) {
    for (const int samples : {-1, 0, 5, 6, 8, 1000}) {
      for (const int warmup : {-1, 0, 3, 20}) {
        AutotuneOptions options = starting_at(kMiB);
        options.steps_per_sample = steps;
        options.max_samples = samples;
        options.warmup_samples = warmup;
        Autotuner tuner(options);
        const int taken = tune(tuner, machine, 1);
        CHECK(tuner.finished());
        CHECK(taken <= std::max(warmup, 0) + 47);
        if (steps == 1 && samples == 6 && warmup == 0) CHECK_EQ(taken, 1 + 2 + 4 * 2);
      }
    }
  }
}

TEST("autotune: the log ends with the best threshold") {
  char path[] = "/tmp/horovod_autotune_XXXXXX";
  const int fd = mkstemp(path);
  REQUIRE(fd >= 0);
  close(fd);
  AutotuneOptions options = starting_at(kMiB);
  options.log_path = path;
  Autotuner tuner(options);
  tune(tuner, {equal_tensors(400, 256 << 10), 5e6, line(2e6, 0.2), 0.01}, 1);
  CHECK(!tuner.error().has_value());
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  CHECK(line ==
        "hierarchical_allreduce,hierarchical_allgather,torus_allreduce,cache_enabled,cycle_time_ms,"
        "tensor_fusion_threshold,score");
  int num_lines = 0;
  std::string last;
  while (std::getline(file, line)) {
    last = line;
    ++num_lines;
  }
  CHECK(num_lines > 5);
  CHECK(last.starts_with("0,0,0,0,0," + std::to_string(tuner.fusion_threshold()) + ","));
  CHECK(tuner.fusion_threshold() > kMiB);
  unlink(path);
}

TEST("autotune: a log that cannot be written is an error with its path and the reason") {
  for (const std::string path : {"/nowhere/log.csv", "/dev/full"}) {
    AutotuneOptions options;
    options.log_path = path;
    std::string message;
    try {
      const Autotuner tuner(options);
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::kUsage);
      message = error.what();
    }
    CHECK(message.find("to " + path + ": ") != std::string::npos);
  }
}

}  // namespace
}  // namespace hvd
