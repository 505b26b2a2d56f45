#include "backend/gpu/agreement.h"

namespace hvd {

GpuAgreement::GpuAgreement(Backend& host, const Batch& like, uint32_t sequence, const GpuCapabilities& capabilities)
    : mine_(capabilities.encode()), all_(GpuCapabilities::kBytes * like.members.size()) {
  Batch batch;
  batch.set = like.set + kAgreementSets;
  batch.sequence = sequence;
  batch.members = like.members;
  batch.set_rank = like.set_rank;
  batch.inputs = {{mine_.data(), static_cast<int64_t>(mine_.size())}};
  batch.outputs = {{all_.data(), static_cast<int64_t>(all_.size())}};
  batch.counts.assign(like.members.size(), static_cast<int64_t>(GpuCapabilities::kBytes));
  exchange_ = host.execute(Collective::kAllgather, std::move(batch));
}

std::vector<GpuCapabilities> GpuAgreement::all_capabilities() const {
  std::vector<GpuCapabilities> all_capabilities;
  const std::span<const std::byte> all(all_);
  for (size_t at = 0; at < all.size(); at += GpuCapabilities::kBytes) {
    all_capabilities.push_back(GpuCapabilities::decode(all.subspan(at, GpuCapabilities::kBytes)));
  }
  return all_capabilities;
}

}  // namespace hvd
