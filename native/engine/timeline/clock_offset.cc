#include "engine/timeline/clock_offset.h"

#include <algorithm>

namespace hvd {
namespace {

// Frequency tolerance of a clock: PHI of RFC 5905.
constexpr double kDrift = 15e-6;

// Times of a peer come from the network: arithmetic that wraps instead of being undefined.
int64_t subtract(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) - static_cast<uint64_t>(b));
}

}  // namespace

void ClockOffset::add_sample(int64_t sent, int64_t peer_time, int64_t received) {
  int64_t round_trip = 0;
  if (__builtin_sub_overflow(received, sent, &round_trip) || round_trip < 0) return;
  const int64_t half = round_trip / 2;
  const Sample sample{.offset = subtract(peer_time, sent + half), .error = half, .received = received};
  if (best_) {
    const double age = static_cast<double>(std::max<int64_t>(0, received - best_->received));
    if (static_cast<double>(sample.error) > static_cast<double>(best_->error) + kDrift * age) return;
  }
  best_ = sample;
}

}  // namespace hvd
