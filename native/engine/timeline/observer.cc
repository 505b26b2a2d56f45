#include "engine/timeline/observer.h"

#include <algorithm>
#include <string>

namespace hvd {
namespace {

// The words of an operation's phases in the timeline: NEGOTIATE_ALLREDUCE, ALLREDUCE, NATIVE_ALLREDUCE.
std::string word_of(const RequestSpec& spec) {
  const bool adasum = spec.kind == OpKind::kAllreduce && spec.reduce_op == ReduceOp::kAdasum;
  std::string word = adasum ? "adasum" : name_of(spec.kind);
  for (char& letter : word) {
    if (letter != '_') letter = static_cast<char>(letter - 'a' + 'A');
  }
  return word;
}

std::string negotiation_of(const RequestSpec& spec) { return "NEGOTIATE_" + word_of(spec); }

// Of tensors on a GPU: until it is in a stream.
std::string execution_of(const RequestSpec& spec) { return (spec.on_gpu ? "GPU_" : "NATIVE_") + word_of(spec); }

}  // namespace

Observer::Observer(const JobInfo& job, std::vector<bool> is_remote, TimelineSession::Send send,
                   std::function<void()> ring)
    : job_(job), ring_(std::move(ring)), session_(job.rank, std::move(is_remote), std::move(send), job.log) {}

// ---- Events

void Observer::record_submission(const Operation& operation) {
  TimelineRecorder& recorder = session_.recorder();
  if (!recorder.active()) return;
  recorder.begin(operation.spec.name, negotiation_of(operation.spec), steady_now());
}

void Observer::record_announcement(int peer, const Announcement& announcement) {
  TimelineRecorder& recorder = session_.recorder();
  if (recorder.active() && announcement.full) {
    recorder.mark(announcement.spec.name, std::to_string(peer), steady_now());
  }
}

void Observer::record_cycle() {
  TimelineRecorder& recorder = session_.recorder();
  if (recorder.active()) recorder.mark("", "CYCLE_START", steady_now());
}

void Observer::record_answer(const Operation& operation, bool failed) {
  TimelineRecorder& recorder = session_.recorder();
  if (!recorder.active()) return;
  const TimePoint now = steady_now();
  if (!operation.state.stands_in) recorder.end(operation.spec.name, now);
  recorder.begin(operation.spec.name, failed ? "ERROR" : word_of(operation.spec), now);
}

void Observer::record_execution(const Operations& operations, bool begins) {
  TimelineRecorder& recorder = session_.recorder();
  if (!recorder.active()) return;
  const TimePoint now = steady_now();
  const std::string activity = execution_of(operations.front()->spec);
  for (const auto& operation : operations) {
    if (begins) {
      recorder.begin(operation->spec.name, activity, now);
    } else {
      recorder.end(operation->spec.name, now);
    }
  }
}

// What a device is at work on stands in a row of its own: the next operation of the same name may have begun. There it
// is one after the other, as in a stream.
void Observer::record_device(const Operations& operations, const void* work, bool begins) {
  TimelineRecorder& recorder = session_.recorder();
  if (!recorder.active()) {
    at_work_.clear();
    return;
  }
  const Operation& first = *operations.front();
  const std::string row = "cuda:" + std::to_string(first.gpu.device);
  auto& spans = at_work_[first.gpu.device];
  if (begins) {
    spans.emplace_back(work, first.spec.name);
    if (spans.size() == 1) recorder.begin(row, first.spec.name, steady_now());
    return;
  }
  const auto found = std::find_if(spans.begin(), spans.end(), [&](const auto& span) { return span.first == work; });
  if (found == spans.end()) return;
  const bool is_shown = found == spans.begin();
  spans.erase(found);
  if (!is_shown) return;
  recorder.end(row, steady_now());
  if (!spans.empty()) recorder.begin(row, spans.front().second, steady_now());
}

void Observer::record_end(const Operation& operation) {
  TimelineRecorder& recorder = session_.recorder();
  if (!recorder.active()) return;
  const auto& tensors = operation.spec.tensors;
  if (tensors.empty()) {
    recorder.end(operation.spec.name, steady_now());
  } else {
    recorder.end(operation.spec.name, steady_now(), name_of(tensors.front().dtype), to_string(tensors.front().shape));
  }
}

// ---- Start and stop, on rank 0

void Observer::start(const std::string& path, bool mark_cycles, const Wait& wait) {
  if (job_.rank != 0) return;
  std::unique_lock change(change_mutex_);
  if (commands_.lock()->path == path) return;
  const auto done = begin(path, mark_cycles, false);
  change.unlock();
  await(*done, wait);
}

void Observer::start_trace(const std::string& path, const Wait& wait) {
  if (job_.rank != 0) return;
  std::unique_lock change(change_mutex_);
  {
    const Locked<Commands> commands = commands_.lock();
    if (!commands->path.empty()) {
      throw Error(ErrorKind::kUsage, commands->is_trace ? "another trace is being taken; try again"
                                                        : "there is a timeline already, in " + commands->path);
    }
  }
  const auto done = begin(path, false, true);
  change.unlock();
  await(*done, wait);
}

// If the file cannot be opened, all stays as it is.
std::shared_ptr<Observer::Command::Done> Observer::begin(const std::string& path, bool mark_cycles, bool is_trace) {
  Command command;
  command.run = ++commands_.lock()->run;
  TimelineWriterOptions options;
  options.path = path;
  options.started = steady_now();
  options.start_epoch_us =
      std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::system_clock::now().time_since_epoch())
          .count();
  options.mark_cycles = mark_cycles;
  options.run = command.run;
  options.rank_names = job_.rank_names;
  options.rank_names.resize(static_cast<size_t>(job_.size));
  command.writer = std::make_unique<TimelineWriter>(std::move(options));
  return give(std::move(command), path, is_trace);
}

void Observer::stop(const Wait& wait) {
  if (job_.rank == 0) static_cast<void>(end(false, wait));
}

bool Observer::stop_trace(const Wait& wait) { return job_.rank == 0 && end(true, wait); }

bool Observer::end(bool is_trace, const Wait& wait) {
  std::unique_lock change(change_mutex_);
  {
    const Locked<Commands> commands = commands_.lock();
    if (commands->path.empty() || commands->is_trace != is_trace) return false;
  }
  const auto done = give({}, "", false);
  change.unlock();
  await(*done, wait);
  return true;
}

void Observer::close() { commands_.lock()->closed = true; }

std::shared_ptr<Observer::Command::Done> Observer::give(Command command, const std::string& path, bool is_trace) {
  auto done = std::make_shared<Command::Done>();
  command.done = done;
  const Locked<Commands> commands = commands_.lock();
  if (commands->closed) {
    throw Error(ErrorKind::kShutDown, "the timeline cannot be changed: Horovod has ended here");
  }
  commands->path = path;
  commands->is_trace = is_trace;
  commands->waiting.push_back(std::move(command));
  has_commands_ = true;
  ring_();
  return done;
}

// Until a change took effect; closes the file that it ends.
void Observer::await(Command::Done& done, const Wait& wait) {
  constexpr Duration kMostWait = std::chrono::seconds(30);
  if (!wait(done.operation, kMostWait)) throw Error(ErrorKind::kInternal, "the timeline could not be changed in time");
  if (done.operation.error()) throw Error(*done.operation.error());
  if (done.ended != nullptr) done.ended->close();
}

void Observer::fail(const Error& error) {
  session_.flush(steady_now(), true);
  std::deque<Command> waiting;
  {
    const Locked<Commands> commands = commands_.lock();
    commands->closed = true;
    waiting.swap(commands->waiting);
  }
  const Error reason(error.kind(), std::string("the timeline cannot be changed: ") + error.what());
  for (const Command& command : waiting) command.done->operation.fail(reason);
  if (ending_) ending_->operation.fail(reason);
  ending_.reset();
}

std::optional<Observer::Command> Observer::next_command() {
  const Locked<Commands> commands = commands_.lock();
  std::optional<Command> command;
  if (!commands->waiting.empty()) {
    command = std::move(commands->waiting.front());
    commands->waiting.pop_front();
  }
  has_commands_ = !commands->waiting.empty();
  return command;
}

void Observer::follow_commands() {
  if (!has_commands_ && !ending_ && !session_.recorder().more()) return;
  const TimePoint now = steady_now();
  if (ending_ && session_.stopped(now)) {
    ending_->ended = session_.take_writer();
    ending_->operation.complete();
    ending_.reset();
  }
  std::optional<Command> command;
  if (!ending_) command = next_command();
  if (command && command->writer != nullptr) {
    command->done->ended = session_.start(std::move(command->writer), command->run, now);
    command->done->operation.complete();
  } else if (command) {
    session_.stop(now);
    ending_ = command->done;
  }
  session_.flush(now);
}

bool Observer::has_ended() {
  if (!session_.writing()) {
    session_.flush(steady_now(), true);
    return true;
  }
  if (!session_.stopping()) session_.stop(steady_now());
  return session_.stopped(steady_now());
}

}  // namespace hvd
