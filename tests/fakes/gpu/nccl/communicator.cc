#include "nccl/communicator.h"

#include <algorithm>
#include <cstring>

#include "nccl/collectives.h"

namespace fake_nccl {
namespace {

// How long a caller that does not ask whether its collective is on the stream has gone on before it is, in turns.
constexpr std::chrono::milliseconds kLaunchTakes{1};

std::mutex error_mutex;
std::string& error_text() {
  static auto* const text = new std::string;
  return *text;
}

// "Duplicate GPU detected", as NCCL says.
void check_cards(const std::vector<Card>& cards) {
  for (size_t a = 0; a < cards.size(); ++a) {
    if (cards[a].size != static_cast<int>(cards.size())) throw Failure(kInvalidUsage, "ranks differ in their number");
    if (cards[a].version != cards[0].version) throw Failure(kInvalidUsage, "ranks differ in NCCL's version");
    for (size_t b = 0; b < a; ++b) {
      if (std::memcmp(cards[a].uuid, cards[b].uuid, sizeof cards[a].uuid) != 0) continue;
      throw Failure(kInvalidUsage, "Duplicate GPU detected : rank " + std::to_string(b) + " and rank " +
                                       std::to_string(a) + " both on CUDA device " + std::to_string(cards[a].device));
    }
  }
}

}  // namespace

void set_last_error(const std::string& text) {
  const std::lock_guard lock(error_mutex);
  error_text() = text;
}

std::string last_error() {
  const std::lock_guard lock(error_mutex);
  return error_text();
}

void note_wrong_use(const std::string& text) {
  set_last_error(text);
  fake_cuda::fake_cuda_note_wrong_use(text);
}

Communicator::Communicator(Spec spec) : spec_(std::move(spec)), mesh_(spec_.name, spec_.rank, spec_.size, interrupt_) {}

Communicator::~Communicator() { join(); }

void Communicator::start() {
  thread_ = std::thread([this] { work(); });
  submit([this] { meet(); });
}

void Communicator::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    while (jobs_.empty() && !closed_) changed_.wait_for(lock, kPatience);
    if (closed_) return;
    const std::function<void()> job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    run(job);
    lock.lock();
  }
}

void Communicator::run(const std::function<void()>& job) {
  try {
    job();
    const std::lock_guard lock(mutex_);
    if (state_ == kInProgress && jobs_.empty()) state_ = kSuccess;
  } catch (const Failure& failure) {
    fail(failure.code, failure.what());
  } catch (const Ended&) {
    // already reported: whoever aborted it knows
  }
  const std::lock_guard lock(mutex_);
  changed_.notify_all();
}

void Communicator::submit(std::function<void()> job) {
  const std::lock_guard lock(mutex_);
  state_ = kInProgress;
  asked_ = false;
  jobs_.push_back(std::move(job));
  changed_.notify_all();
}

void Communicator::join() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    changed_.notify_all();
  }
  if (!thread_.joinable()) return;
  // The last to refer to it may be its own thread.
  thread_.get_id() == std::this_thread::get_id() ? thread_.detach() : thread_.join();
}

void Communicator::meet() {
  switch (next_action("init")) {
    case Action::kHang:
      hang();
      break;
    case Action::kAsyncError:
      throw Failure(kRemoteError, "the test lets init fail");
    default:
      break;
  }
  if (interrupt_.is_set()) throw Ended();
  Card mine;
  mine.rank = spec_.rank;
  mine.size = spec_.size;
  mine.version = version();
  mine.device = spec_.device;
  const std::string uuid = fake_cuda::fake_cuda_uuid_of(spec_.device);
  std::memcpy(mine.uuid, uuid.data(), std::min(uuid.size(), sizeof mine.uuid));
  check_cards(mesh_.connect(mine));
}

Result Communicator::wait_until_ready() {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, kPatience, [this] { return state_ != kInProgress || interrupt_.is_set(); });
  return state_ == kInProgress ? kSystemError : state_;
}

Result Communicator::state() const {
  const std::lock_guard lock(mutex_);
  return state_;
}

Result Communicator::ask_state() {
  const std::lock_guard lock(mutex_);
  asked_ = true;
  changed_.notify_all();
  return state_;
}

Result Communicator::check(const char* call) const {
  const std::lock_guard lock(mutex_);
  if (state_ == kInProgress) {
    note_wrong_use(std::string(call) +
                   ": attempt to use a communicator before the previous operation returned ncclSuccess");
    return kInvalidArgument;
  }
  if (state_ != kSuccess) return state_;
  if (!finalized_ && !ended_operations_) return kSuccess;
  note_wrong_use(std::string(call) + " was called on a communicator that was finalized or shrunk");
  return kInvalidUsage;
}

Action Communicator::next_action(const std::string& call) {
  int nth = 0;
  {
    const std::lock_guard lock(mutex_);
    nth = ++num_calls_[call];
  }
  return action_for(call, nth, spec_.rank);
}

void Communicator::hang() {
  fake_nccl::hang([this] { return interrupt_.is_set(); });
}

void Communicator::fail(Result code, const std::string& text) {
  set_last_error(text);
  const std::lock_guard lock(mutex_);
  if (state_ == kSuccess || state_ == kInProgress) state_ = code;
  changed_.notify_all();
}

Op Communicator::add_operator(Premultiplied made) {
  const std::lock_guard lock(mutex_);
  operators_[next_operator_] = std::move(made);
  return next_operator_++;
}

bool Communicator::remove_operator(Op op) {
  const std::lock_guard lock(mutex_);
  return operators_.erase(op) > 0;
}

std::optional<Premultiplied> Communicator::operator_of(Op op) const {
  const std::lock_guard lock(mutex_);
  const auto found = operators_.find(op);
  if (found == operators_.end()) return {};
  return found->second;
}

Result Communicator::launch(std::vector<Operation> operations, const fake_cuda::StreamPlace& place) {
  const Launch when = fake_nccl::launch();
  bool later = false;
  {
    const std::lock_guard lock(mutex_);
    for (Operation& operation : operations) {
      if (!is_alone(operation.kind)) operation.sequence = next_sequence_++;
    }
    const bool its_turn = num_launches_++ % 2 == 0;
    later = !spec_.blocking && (when == Launch::kLater || (when == Launch::kInTurns && its_turn));
  }
  if (!later) {
    enqueue(std::move(operations), place);
    return kSuccess;
  }
  submit([this, operations = std::move(operations), place, when] {
    wait_for_launch(when);
    enqueue(operations, place);
  });
  return kInProgress;
}

void Communicator::wait_for_launch(Launch when) {
  std::unique_lock lock(mutex_);
  const auto patience = when == Launch::kLater ? kPatience : kLaunchTakes;
  changed_.wait_for(lock, patience, [&] { return closed_ || (when == Launch::kLater && asked_); });
}

void Communicator::enqueue(std::vector<Operation> operations, const fake_cuda::StreamPlace& place) {
  {
    const std::lock_guard lock(mutex_);
    ++num_outstanding_;
  }
  // Counts down even if the stream drops the work, as it does when its device has failed.
  const std::shared_ptr<Communicator> counted(this, [self = shared_from_this()](Communicator* communicator) {
    const std::lock_guard lock(communicator->mutex_);
    --communicator->num_outstanding_;
    communicator->changed_.notify_all();
  });
  fake_cuda::fake_cuda_enqueue(
      place, [counted, operations = std::move(operations), place] { counted->execute(operations, place); });
}

// On the stream. What has failed keeps the stream, as NCCL's kernels do, until it is aborted.
void Communicator::execute(const std::vector<Operation>& operations, const fake_cuda::StreamPlace& place) {
  const auto ends = [&] { return interrupt_.is_set() || fake_cuda::fake_cuda_is_ending(place); };
  std::unique_lock lock(mutex_);
  while (executing_ && !ends()) changed_.wait_for(lock, std::chrono::milliseconds(10));
  if (ends()) return;
  executing_ = true;
  lock.unlock();
  try {
    execute_on(mesh_, spec_, operations, ends);
  } catch (const Failure& failure) {
    fail(failure.code, failure.what());
    fake_nccl::hang(ends);
  } catch (const Ended&) {
    // already reported: whoever aborted it knows, and calls say that the device has failed
  }
  lock.lock();
  executing_ = false;
  changed_.notify_all();
}

void Communicator::say_goodbye() {
  std::unique_lock lock(mutex_);
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (num_outstanding_ > 0 && !interrupt_.is_set()) {
    if (std::chrono::steady_clock::now() > deadline) throw Failure(kSystemError, "a stream did not end within 60 s");
    changed_.wait_for(lock, std::chrono::milliseconds(100));
  }
  lock.unlock();
  std::vector<Traffic> traffic(static_cast<size_t>(spec_.size));
  for (Traffic& each : traffic) {
    each.send(Header(), nullptr);
    each.expect(Header());
  }
  mesh_.exchange(traffic, [] { return false; });
}

Result Communicator::finalize() {
  {
    const std::lock_guard lock(mutex_);
    finalized_ = true;
  }
  submit([this] { say_goodbye(); });
  return spec_.blocking ? wait_until_ready() : kInProgress;
}

Result Communicator::destroy() {
  Result result = kSuccess;
  bool must_finalize = false;
  {
    const std::lock_guard lock(mutex_);
    must_finalize = !finalized_ && state_ == kSuccess && !ended_operations_;
    if (state_ != kSuccess) note_wrong_use("ncclCommDestroy was called on a communicator with an error: abort it");
  }
  if (must_finalize) {
    finalize();
    result = wait_until_ready();
  }
  interrupt_.set();
  join();
  return result;
}

void Communicator::abort() {
  interrupt_.set();
  join();
  const std::lock_guard lock(mutex_);
  changed_.notify_all();
}

std::string Communicator::prepare_to_shrink(bool ends_operations) {
  if (ends_operations) interrupt_.set();
  const std::lock_guard lock(mutex_);
  ended_operations_ = ended_operations_ || ends_operations;
  changed_.notify_all();
  return spec_.name + "/" + std::to_string(num_offspring_++);
}

}  // namespace fake_nccl
