#include "backend/nccl/nccl_execution.h"

#include <algorithm>

namespace hvd::nccl {
namespace {

// What a rank gave to NCCL before it left may take this long to arrive.
constexpr Duration kLastDataTime = std::chrono::seconds(2);

}  // namespace

NcclExecution::~NcclExecution() {
  if (task_->drop() || task_->stage() == Task::Stage::kDone || !task_->touched() || thread_->is_given_up()) return;
  static_cast<void>(thread_->wait(*task_));
  if (task_->stage() != Task::Stage::kDone) thread_->give_up("an operation was dropped that was being executed");
}

bool NcclExecution::advance() {
  const Task::Stage now = task_->stage();
  if (now == Task::Stage::kFailed) throw Error(task_->error());
  if (now != Task::Stage::kDone && thread_->is_given_up()) {
    throw Error(ErrorKind::kInternal, "NCCL was given up: " + thread_->given_up().value_or("it ended"));
  }
  return std::exchange(seen_, now) != now;
}

bool NcclExecution::done() const {
  if (seen_ == Task::Stage::kDone) return true;
  const bool failed = task_->stage() == Task::Stage::kFailed || thread_->is_given_up();
  return failed && (!task_->touched() || communicator_->ended());
}

device::SharedEvent NcclExecution::finished() const { return handed_over() ? task_->finished() : nullptr; }

bool NcclExecution::waits_for(int rank) {
  return !done() && std::find(members_.begin(), members_.end(), rank) != members_.end();
}

bool NcclExecution::gives_up_on(int rank) {
  if (!waits_for(rank)) return false;
  const TimePoint now = std::chrono::steady_clock::now();
  if (!first_gone_) first_gone_ = now;
  return now - *first_gone_ >= kLastDataTime;
}

}  // namespace hvd::nccl
