#include "backend/gpu/route.h"

#include <algorithm>

namespace hvd {
namespace {

// What a member gave to its device before it left may take this long to arrive.
constexpr Duration kLastDataTime = std::chrono::seconds(2);

}  // namespace

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
  kind_ = backend_.settle(waiting_.front()->batch_, agreement_->cards()).kind;
  agreement_.reset();
  for (GpuExecution* execution : std::exchange(waiting_, {})) begin(*execution);
  return true;
}

void GpuRoute::begin(GpuExecution& execution) {
  execution.inner_ =
      backend_.begin_on(*kind_, execution.staged_only_, std::move(execution.batch_), std::move(execution.begin_));
}

GpuExecution::GpuExecution(std::shared_ptr<GpuRoute> route, Batch batch, bool staged_only, GpuRoute::Begin begin)
    : route_(std::move(route)), batch_(std::move(batch)), staged_only_(staged_only), begin_(std::move(begin)) {
  route_->enter(*this);
}

GpuExecution::~GpuExecution() { route_->leave(*this); }

bool GpuExecution::waits_for(int rank) { return inner_ ? inner_->waits_for(rank) : route_->waits_for(rank); }

// A member that leaves in good order has seen the end on its own device, which may be a little ahead of this one.
bool GpuExecution::gives_up_on(int rank) {
  if (inner_ == nullptr) return route_->gives_up_on(rank);
  if (!inner_->gives_up_on(rank)) return false;
  const TimePoint now = std::chrono::steady_clock::now();
  if (!first_gone_) first_gone_ = now;
  return now - *first_gone_ >= kLastDataTime;
}

}  // namespace hvd
