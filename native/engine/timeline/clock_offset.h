// How far the steady clock of a peer is from this rank's.
//
// A peer answers with its time between two moments that this rank reads from its own clock. Whatever the way there and
// back took, the answer was made between the two, so half the round trip bounds the error: F. Cristian, "Probabilistic
// clock synchronization", Distributed Computing 3 (1989). Of several samples the one with the shortest round trip is
// kept; as clocks drift, its bound grows with its age by what NTP assumes, 15 ppm: RFC 5905, sections 7.1 and 10.
#pragma once

#include <cstdint>
#include <optional>

namespace hvd {

class ClockOffset {
 public:
  // All in nanoseconds: `sent` and `received` on this rank's clock, `peer_time` on the peer's in between. A sample that
  // arrived before it was sent is ignored.
  void add_sample(int64_t sent, int64_t peer_time, int64_t received);

  [[nodiscard]] bool has_sample() const { return best_.has_value(); }
  // Nanoseconds to subtract from a time of the peer to get this rank's time. 0 without a sample.
  [[nodiscard]] int64_t offset() const { return best_ ? best_->offset : 0; }
  // By how many nanoseconds offset() may have been wrong when it was measured. 0 without a sample.
  [[nodiscard]] int64_t error_bound() const { return best_ ? best_->error : 0; }

 private:
  struct Sample {
    int64_t offset;
    int64_t error;
    int64_t received;
  };
  std::optional<Sample> best_;
};

}  // namespace hvd
