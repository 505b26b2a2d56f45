#include "backend/mpi/mpi_execution.h"

#include <algorithm>

namespace hvd {
namespace {

// What a rank gave to MPI before it left may take this long to arrive.
constexpr Duration kLastDataTime = std::chrono::seconds(2);

}  // namespace

MpiExecution::~MpiExecution() {
  if (!ticket_->done()) process_->thread().give_up("an operation was dropped that was being executed");
}

bool MpiExecution::advance() {
  if (done_ || !ticket_->done()) return false;
  if (ticket_->error()) throw Error(*ticket_->error());
  done_ = true;
  return true;
}

bool MpiExecution::waits_for(int rank) {
  return !done_ && std::find(members_.begin(), members_.end(), rank) != members_.end();
}

bool MpiExecution::gives_up_on(int rank) {
  if (!waits_for(rank)) return false;
  const TimePoint now = std::chrono::steady_clock::now();
  if (!first_gone_) first_gone_ = now;
  return now - *first_gone_ >= kLastDataTime;
}

}  // namespace hvd
