#include "backend/gpu/route.h"

#include <algorithm>

namespace hvd {

void GpuRoute::enter(GpuExecution& execution) {
  if (kind_) {
    begin(execution);
  } else {
    waiting_.push_back(&execution);
  }
}

void GpuRoute::leave(GpuExecution& execution) { std::erase(waiting_, &execution); }

bool GpuRoute::advance() {
  if (kind_) return false;
  const bool progressed = agreement_->advance();
  if (!agreement_->done()) return progressed;
  kind_ = backend_.settle(waiting_.front()->batch_, agreement_->all_capabilities()).kind;
  agreement_.reset();
  for (GpuExecution* execution : std::exchange(waiting_, {})) begin(*execution);
  return true;
}

void GpuRoute::begin(GpuExecution& execution) {
  execution.inner_ = backend_.begin_on(*kind_, execution.collective_, std::move(execution.batch_));
}

GpuExecution::GpuExecution(std::shared_ptr<GpuRoute> route, Collective collective, Batch batch)
    : route_(std::move(route)), collective_(collective), batch_(std::move(batch)) {
  route_->enter(*this);
}

GpuExecution::~GpuExecution() { route_->leave(*this); }

}  // namespace hvd
