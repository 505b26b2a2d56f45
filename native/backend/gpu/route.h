// What batches of one process set and list of devices share: the agreement on their way, and their order until then.
#pragma once

#include <deque>
#include <memory>
#include <optional>

#include "backend/gpu/agreement.h"
#include "backend/gpu/gpu_backend.h"

namespace hvd {

class GpuExecution;

class GpuRoute {
 public:
  GpuRoute(GpuBackend& backend, std::unique_ptr<GpuAgreement> agreement)
      : backend_(backend), agreement_(std::move(agreement)) {}

  // Begins it at once if the way is known.
  void enter(GpuExecution& execution);
  void leave(GpuExecution& execution);
  // Goes on with the agreement; when that is done, begins all that wait for it, in their order.
  bool advance();
  [[nodiscard]] bool waits_for(int rank) { return agreement_ != nullptr && agreement_->waits_for(rank); }
  [[nodiscard]] bool gives_up_on(int rank) { return agreement_ != nullptr && agreement_->gives_up_on(rank); }

 private:
  void begin(GpuExecution& execution);

  GpuBackend& backend_;
  std::unique_ptr<GpuAgreement> agreement_;  // until it is done
  std::optional<GpuPath::Kind> kind_;
  std::deque<GpuExecution*> waiting_;
};

class GpuExecution final : public Execution {
 public:
  GpuExecution(std::shared_ptr<GpuRoute> route, Collective collective, Batch batch);
  GpuExecution(const GpuExecution&) = delete;
  GpuExecution& operator=(const GpuExecution&) = delete;
  ~GpuExecution() override;

  bool advance() override { return inner_ == nullptr ? route_->advance() : inner_->advance(); }
  [[nodiscard]] bool done() const override { return inner_ != nullptr && inner_->done(); }
  [[nodiscard]] bool handed_over() const override { return inner_ != nullptr && inner_->handed_over(); }
  [[nodiscard]] device::SharedEvent finished() const override { return inner_ ? inner_->finished() : nullptr; }
  [[nodiscard]] bool may_be_on_device() const override { return inner_ != nullptr && inner_->may_be_on_device(); }
  [[nodiscard]] bool waits_for(int rank) override { return inner_ ? inner_->waits_for(rank) : route_->waits_for(rank); }
  [[nodiscard]] bool gives_up_on(int rank) override {
    return inner_ ? inner_->gives_up_on(rank) : route_->gives_up_on(rank);
  }

 private:
  friend class GpuRoute;

  std::shared_ptr<GpuRoute> route_;
  Collective collective_;
  Batch batch_;  // until it begins
  std::unique_ptr<Execution> inner_;
};

}  // namespace hvd
