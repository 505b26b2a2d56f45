// The ranks of a process set show each other their capabilities, over the connections of the CPU's data plane.
#pragma once

#include <memory>
#include <vector>

#include "backend/backend.h"
#include "backend/gpu/capabilities.h"

namespace hvd {

// Batches of the host's backend that carry capabilities have the number of their process set plus this, and sequence
// numbers of their own. StagedBackend adds another number.
inline constexpr uint32_t kAgreementSets = uint32_t{1} << 30;

class GpuAgreement {
 public:
  // `like`: the first batch that waits for it.
  GpuAgreement(Backend& host, const Batch& like, uint32_t sequence, const GpuCapabilities& capabilities);

  // Does what can be done without waiting; returns whether anything was done.
  bool advance() { return exchange_->advance(); }
  [[nodiscard]] bool done() const { return exchange_->done(); }
  [[nodiscard]] bool waits_for(int rank) { return exchange_->waits_for(rank); }
  [[nodiscard]] bool gives_up_on(int rank) { return exchange_->gives_up_on(rank); }
  // Of all members by set rank; when it is done.
  [[nodiscard]] std::vector<GpuCapabilities> all_capabilities() const;

 private:
  Bytes mine_;
  Bytes all_;
  std::unique_ptr<Execution> exchange_;  // uses both
};

}  // namespace hvd
