#include "backend/gpu/agreement.h"

namespace hvd {

GpuAgreement::GpuAgreement(Backend& host, const Batch& like, uint32_t sequence, const GpuCard& card)
    : mine_(card.encode()), all_(GpuCard::kBytes * like.members.size()) {
  Batch batch;
  batch.set = like.set + kAgreementSets;
  batch.sequence = sequence;
  batch.members = like.members;
  batch.set_rank = like.set_rank;
  batch.inputs = {{mine_.data(), static_cast<int64_t>(mine_.size())}};
  batch.outputs = {{all_.data(), static_cast<int64_t>(all_.size())}};
  batch.counts.assign(like.members.size(), static_cast<int64_t>(GpuCard::kBytes));
  exchange_ = host.execute(Collective::kAllgather, std::move(batch));
}

std::vector<GpuCard> GpuAgreement::cards() const {
  std::vector<GpuCard> cards;
  const std::span<const std::byte> all(all_);
  for (size_t at = 0; at < all.size(); at += GpuCard::kBytes) {
    cards.push_back(GpuCard::decode(all.subspan(at, GpuCard::kBytes)));
  }
  return cards;
}

}  // namespace hvd
