// The time of a blocking allreduce as the engine sees it, without an interpreter: two ranks, each a thread with a core
// of its own, over the shared memory that processes use too.
//
//   native_latency BYTES SECONDS    prints the microseconds of one allreduce, the median of short bursts on rank 0
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "testing/array.h"
#include "testing/world.h"

namespace hvd::testing {
namespace {

constexpr int kBurst = 100;

double microseconds_of_burst(Engine& engine, std::vector<float>& values) {
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < kBurst; ++i) {
    const auto operation = make_allreduce("latency", {view(values)}, {view(values)});
    submit_to(engine, operation, true);
    engine.wait(*operation, std::chrono::seconds(10));
  }
  const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begin;
  return took.count() / kBurst;
}

// The number of bursts follows from the first few, so both ranks do as many.
double median_microseconds(size_t bytes, double seconds) {
  World world(2);
  constexpr int kWarmup = 20;
  std::vector<double> bursts;
  world.run([&](int rank) {
    std::vector<float> values(std::max<size_t>(bytes / sizeof(float), 1));
    Engine& engine = world.engine(rank);
    std::vector<double> warmup;
    for (int i = 0; i < kWarmup; ++i) warmup.push_back(microseconds_of_burst(engine, values));
    std::nth_element(warmup.begin(), warmup.begin() + kWarmup / 2, warmup.end());
    std::vector<float> count(1, rank == 0 ? static_cast<float>(seconds * 1e6 / (warmup[kWarmup / 2] * kBurst)) : 0.0F);
    run_operation(engine, make_allreduce("count", {view(count)}, {view(count)}));
    for (int i = 0; i < std::max(5, static_cast<int>(count[0])); ++i) {
      const double burst = microseconds_of_burst(engine, values);
      if (rank == 0) bursts.push_back(burst);
    }
  });
  const auto middle = bursts.begin() + static_cast<std::ptrdiff_t>(bursts.size() / 2);
  std::nth_element(bursts.begin(), middle, bursts.end());
  return *middle;
}

}  // namespace
}  // namespace hvd::testing

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: %s BYTES SECONDS\n", argv[0]);
    return 2;
  }
  const auto bytes = static_cast<size_t>(std::strtoull(argv[1], nullptr, 10));
  std::printf("%.3f\n", hvd::testing::median_microseconds(bytes, std::strtod(argv[2], nullptr)));
  return 0;
}
