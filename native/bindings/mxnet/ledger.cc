#include "bindings/mxnet/ledger.h"

namespace hvd::mxnet {
namespace {

bool ends_the_job(const kernels::Failure& failure) {
  if (failure.trouble != kernels::Trouble::kEngine) return false;
  return failure.kind == ErrorKind::kPeerLost || failure.kind == ErrorKind::kShutDown ||
         failure.kind == ErrorKind::kStalled || failure.kind == ErrorKind::kInternal;
}

}  // namespace

void Ledger::begun() {
  const std::lock_guard lock(mutex_);
  ++in_flight_;
}

void Ledger::ended() {
  const std::lock_guard lock(mutex_);
  --in_flight_;
  changed_.notify_all();
}

void Ledger::failed(const kernels::Failure& failure) {
  const std::lock_guard lock(mutex_);
  ++num_failures_;
  if (is_over_) return;
  is_over_ = ends_the_job(failure);
  failure_ = failure.text;
}

int Ledger::in_flight() const {
  const std::lock_guard lock(mutex_);
  return in_flight_;
}

bool Ledger::wait_until_none_is_in_flight(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, timeout, [this] { return in_flight_ == 0; });
}

std::string Ledger::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

int Ledger::num_failures() const {
  const std::lock_guard lock(mutex_);
  return num_failures_;
}

bool Ledger::is_over() const {
  const std::lock_guard lock(mutex_);
  return is_over_;
}

void Ledger::forget() {
  const std::lock_guard lock(mutex_);
  num_failures_ = 0;
  is_over_ = false;
  failure_.clear();
}

Ledger& ledger() {
  static auto* made = new Ledger();
  return *made;
}

}  // namespace hvd::mxnet
