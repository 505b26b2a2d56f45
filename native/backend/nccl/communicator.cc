#include "backend/nccl/communicator.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <thread>

#include "backend/nccl/messages.h"
#include "reduce/kernels.h"
#include "reduce/neutral.h"

namespace hvd::nccl {
namespace {

// While something is in flight, NCCL is asked that often whether it failed.
constexpr Duration kCheckPeriod = std::chrono::milliseconds(50);
// How long the end in good order may take, which includes that of other ranks.
constexpr Duration kFinalizeTime = std::chrono::seconds(1);

constexpr size_t kLargestElement = 8;

// As the kernels of the CPU round it.
std::array<std::byte, kLargestElement> scalar(DType dtype, double factor) {
  std::array<std::byte, kLargestElement> one{};
  std::array<std::byte, kLargestElement> scaled{};
  fill_neutral(dtype, ReduceOp::kProduct, one.data(), 1);
  scale(dtype, scaled.data(), one.data(), 1, factor);
  return scaled;
}

}  // namespace

bool Task::drop() {
  Stage expected = Stage::kQueued;
  return stage_.compare_exchange_strong(expected, Stage::kDropped);
}

bool Task::begin_launch() {
  Stage expected = Stage::kQueued;
  return stage_.compare_exchange_strong(expected, Stage::kLaunching);
}

void Task::fail(const Error& error) {
  if (stage() == Stage::kDone || stage() == Stage::kDropped) return;
  error_ = error;
  move_to(Stage::kFailed);
}

Communicator::Communicator(std::shared_ptr<const Library> library, CommunicatorSpec spec, NcclOptions options,
                           std::shared_ptr<Bell> bell, std::shared_ptr<Signal> signal)
    : library_(std::move(library)),
      spec_(std::move(spec)),
      options_(options),
      bell_(std::move(bell)),
      signal_(std::move(signal)),
      stream_(spec_.gpu->make_stream(true)) {}

Communicator::~Communicator() { spec_.gpu->destroy_stream(stream_); }

std::string Communicator::who() const {
  const auto rank = static_cast<size_t>(spec_.set_rank);
  const std::string name = rank < spec_.rank_names.size() ? spec_.rank_names[rank] : "set rank " + std::to_string(rank);
  return name + " on " + spec_.gpu->where();
}

void Communicator::check(Result result, const char* call, const std::string& what) const {
  nccl::check(*library_, result, call, who(), what, raw_);
}

// What became of the last call.
Result Communicator::poll(const char* call, const std::string& what) const {
  const RawCommunicator raw = raw_;
  if (raw == nullptr) throw Error(ErrorKind::kInternal, who() + ": " + what + ": NCCL's communicator was aborted");
  Result state = kSuccess;
  check(library_->functions->comm_get_async_error(raw, &state), "ncclCommGetAsyncError", what);
  check(state, call, what);
  return state;
}

void Communicator::add(std::shared_ptr<Task> task) {
  if (phase_ == Phase::kClosed) {
    task->fail(error_.value_or(Error(ErrorKind::kInternal, who() + ": NCCL's communicator was ended")));
    bell_->ring();
    return;
  }
  queue_.push_back(std::move(task));
}

Attention Communicator::attention() const {
  switch (phase_) {
    case Phase::kNew:
    case Phase::kCreating:
    case Phase::kLaunching:
    case Phase::kFinalizing:
      return Attention::kLibrary;
    case Phase::kFailing:
      return Attention::kDevice;
    case Phase::kReady:
      return in_flight_.empty() ? Attention::kNone : Attention::kDevice;
    case Phase::kClosed:
      break;
  }
  return Attention::kNone;
}

bool Communicator::turn(TimePoint now) {
  if (phase_ == Phase::kClosed) return false;
  if (phase_ == Phase::kFailing) {
    if (now < deadline_) return false;
    break_off(*error_);
    return true;
  }
  try {
    const device::Gpu::Current current(*spec_.gpu);
    const bool finished = take_finished(now);
    return step(now) || finished;
  } catch (const CallError& error) {
    fail(error, error.may_follow_from_a_lost_rank() ? now + options_.better_reason_time : now);
  } catch (const Error& error) {
    fail(completed(error), now);
  }
  return true;
}

bool Communicator::step(TimePoint now) {
  switch (phase_) {
    case Phase::kNew:
      create(now);
      return true;
    case Phase::kCreating:
      return go_on_creating(now);
    case Phase::kLaunching:
      return go_on_launching();
    case Phase::kReady:
      break;
    default:
      return end(now);
  }
  bool launched = false;
  while (phase_ == Phase::kReady && !queue_.empty()) {
    const std::shared_ptr<Task> task = std::move(queue_.front());
    queue_.pop_front();
    launched = true;
    if (aborting_) throw Error(ErrorKind::kInternal, who() + ": NCCL's communicator was aborted");
    if (task->begin_launch()) launch(task);
  }
  return launched || end(now);
}

void Communicator::create(TimePoint now) {
  deadline_ = now + options_.creation_time;
  phase_ = Phase::kCreating;
  if (!calls_nccl()) return;
  UniqueId id{};
  if (spec_.unique_id.size() != sizeof(id.bytes)) {
    throw Error(ErrorKind::kInternal, who() + ": NCCL's unique id has " + std::to_string(spec_.unique_id.size()) +
                                          " bytes instead of " + std::to_string(sizeof(id.bytes)));
  }
  std::memcpy(id.bytes, spec_.unique_id.data(), sizeof(id.bytes));
  Config config;
  config.blocking = 0;
  const auto size = static_cast<int>(spec_.devices.size());
  const Result result = library_->functions->comm_init_rank_config(&made_, size, id, spec_.set_rank, &config);
  raw_ = made_;
  check(result, "ncclCommInitRankConfig", "the communicator");
}

bool Communicator::go_on_creating(TimePoint now) {
  if (calls_nccl() && poll("ncclCommInitRankConfig", "the communicator") == kInProgress) {
    if (now >= deadline_) throw_late();
    return false;
  }
  phase_ = Phase::kReady;
  return true;
}

void Communicator::throw_late() const {
  std::string members;
  for (const std::string& name : spec_.rank_names) members += (members.empty() ? "" : ", ") + name;
  const auto seconds = std::chrono::duration_cast<std::chrono::duration<double>>(options_.creation_time).count();
  throw Error(ErrorKind::kInternal,
              who() + ": " + library_->name() + " could not make a communicator of " + members + " within " +
                  std::to_string(std::lround(seconds)) +
                  " s. Likely: one of these ranks hangs, its host cannot be reached through the network interface that "
                  "NCCL took (NCCL_SOCKET_IFNAME names the right one), or a firewall is in between. NCCL_DEBUG=INFO "
                  "lets NCCL write what it tries.");
}

void Communicator::launch(const std::shared_ptr<Task>& task) {
  launching_ = task;
  phase_ = Phase::kLaunching;
  Batch& batch = task->batch_;
  for (const device::SharedEvent& event : batch.ready) event->hold(stream_);
  batch.ready.clear();
  task->touched_.store(true, std::memory_order_release);
  for (const Copy& copy : task->calls_.copies) spec_.gpu->copy(copy.to, copy.from, copy.bytes, stream_);
  if (!task->calls_.calls.empty()) call_group(*task);
  go_on_launching();
}

void Communicator::call_group(Task& task) {
  const Functions& functions = *library_->functions;
  const std::string& what = task.batch_.what;
  const RedOp op = operation_of(task);
  check(functions.group_start(), "ncclGroupStart", what);
  try {
    for (const Call& call : task.calls_.calls) {
      if (aborting_) throw Error(ErrorKind::kInternal, who() + ": " + what + ": NCCL's communicator was aborted");
      check(make(functions, call, task.calls_.dtype, op, raw_, stream_), name_of(call.kind), what);
    }
  } catch (const Error&) {
    functions.group_end();  // what it says follows from the error that is reported
    throw;
  }
  check(functions.group_end(), "ncclGroupEnd", what);
}

RedOp Communicator::operation_of(const Task& task) {
  if (!task.calls_.factor) return task.calls_.op;
  auto value = scalar(task.batch_.dtype, *task.calls_.factor);
  RedOp made = kSum;
  const Result result = library_->functions->red_op_create_pre_mul_sum(&made, value.data(), task.calls_.dtype,
                                                                       kScalarHostImmediate, raw_);
  check(result, "ncclRedOpCreatePreMulSum", task.batch_.what);
  own_op_ = made;
  return made;
}

// What was called is on the stream only when NCCL says so.
bool Communicator::go_on_launching() {
  const std::string& what = launching_->batch_.what;
  if (!launching_->calls_.calls.empty() && poll("ncclGroupEnd", what) == kInProgress) return false;
  if (own_op_) check(library_->functions->red_op_destroy(*own_op_, raw_), "ncclRedOpDestroy", what);
  own_op_.reset();
  hand_over(std::exchange(launching_, nullptr));
  phase_ = Phase::kReady;
  return true;
}

void Communicator::hand_over(const std::shared_ptr<Task>& task) {
  in_flight_.push_back(task);
  task->finished_ = spec_.gpu->record(stream_);
  task->move_to(Task::Stage::kHandedOver);
  bell_->ring();
}

// Kernels also end when the communicator has failed, so NCCL is asked before a batch is taken for done.
bool Communicator::take_finished(TimePoint now) {
  if (in_flight_.empty()) return false;
  const bool reached = in_flight_.front()->finished_->reached();
  if (raw_ != nullptr && (reached || now - last_check_ >= kCheckPeriod)) {
    last_check_ = now;
    static_cast<void>(poll("a kernel or a connection", in_flight_.front()->batch_.what));
  }
  if (!reached) return false;
  while (!in_flight_.empty() && in_flight_.front()->finished_->reached()) {
    in_flight_.front()->move_to(Task::Stage::kDone);
    in_flight_.pop_front();
  }
  bell_->ring();
  return true;
}

// In good order, if all is done.
bool Communicator::end(TimePoint now) {
  if (!retiring_ || !in_flight_.empty()) return false;
  const Functions& functions = *library_->functions;
  if (phase_ == Phase::kReady) {
    phase_ = Phase::kFinalizing;
    deadline_ = now + kFinalizeTime;
    if (raw_ != nullptr) check(functions.comm_finalize(raw_), "ncclCommFinalize", "the end");
    return true;
  }
  if (raw_ != nullptr && poll("ncclCommFinalize", "the end") == kInProgress) {
    if (now >= deadline_) throw Error(ErrorKind::kInternal, who() + ": ncclCommFinalize takes too long");
    return false;
  }
  const RawCommunicator raw = raw_.exchange(nullptr);
  if (raw != nullptr) check(functions.comm_destroy(raw), "ncclCommDestroy", "the end");
  ended_->store(true, std::memory_order_release);
  phase_ = Phase::kClosed;
  return true;
}

// The driver's errors do not know whose they are.
Error Communicator::completed(const Error& error) const {
  const std::string text = error.what();
  if (text.starts_with(who())) return error;
  const Task* task = launching_.get();
  if (task == nullptr && !in_flight_.empty()) task = in_flight_.front().get();
  return {error.kind(),
          who() + ": " + (task != nullptr ? task->batch_.what + ": " : "") + text +
              ". Likely: an earlier kernel of the program failed (CUDA_LAUNCH_BLOCKING=1 tells which), or "
              "the GPU did (dmesg tells)"};
}

// Told at `tell_at`, unless a better reason comes before.
void Communicator::fail(const Error& error, TimePoint tell_at) {
  error_ = error;
  deadline_ = tell_at;
  phase_ = Phase::kFailing;
}

void Communicator::break_off(const Error& error) {
  if (phase_ == Phase::kClosed) return;
  phase_ = Phase::kClosed;
  error_ = error;
  if (launching_ != nullptr) in_flight_.push_back(std::exchange(launching_, nullptr));
  for (const auto* tasks : {&in_flight_, &queue_}) {
    for (const auto& task : *tasks) task->fail(error);
  }
  in_flight_.clear();
  queue_.clear();
  abort();
  bell_->ring();
}

// Each in a thread of its own: one may wait for the kernels of another (NVIDIA/nccl#564). The driver's thread that
// comes to the end of the stream must not let go of this, as the destructor calls the driver.
void Communicator::abort() {
  if (aborting_.exchange(true)) return;
  const auto body = [self = shared_from_this()] {
    const RawCommunicator raw = self->raw_.exchange(nullptr);
    try {
      const device::Gpu::Current current(*self->spec_.gpu);
      if (raw != nullptr) self->library_->functions->comm_abort(raw);
      self->spec_.gpu->call_behind(self->stream_, [ended = self->ended_, signal = self->signal_] {
        ended->store(true, std::memory_order_release);
        signal->notify();
      });
    } catch (const Error&) {  // already reported by the batch that failed: a device in this state does nothing more
      self->ended_->store(true, std::memory_order_release);
      self->signal_->notify();
    }
  };
  std::thread([body] {
    sigset_t all_signals;
    sigfillset(&all_signals);
    pthread_sigmask(SIG_BLOCK, &all_signals, nullptr);
    pthread_setname_np(pthread_self(), "hvd-nccl-abort");
    body();
  }).detach();
}

}  // namespace hvd::nccl
