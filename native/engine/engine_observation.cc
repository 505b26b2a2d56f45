// What the engine notes of its own work: events for the timeline, costs of batches for tuning.
#include <algorithm>
#include <string>

#include "engine/engine.h"

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

TimePoint steady_now() { return std::chrono::steady_clock::now(); }

}  // namespace

// ---- Events: negotiation from the submission to the answer, then the operation, then what moves its data.

void Engine::record_submission(const Operation& operation) {
  TimelineRecorder& recorder = timeline_->recorder();
  if (!recorder.active()) return;
  recorder.begin(operation.spec.name, negotiation_of(operation.spec), steady_now());
}

void Engine::record_announcement(int peer, const Announcement& announcement) {
  TimelineRecorder& recorder = timeline_->recorder();
  if (recorder.active() && announcement.full) {
    recorder.mark(announcement.spec.name, std::to_string(peer), steady_now());
  }
}

void Engine::record_answer(const Operation& operation, bool failed) {
  TimelineRecorder& recorder = timeline_->recorder();
  if (!recorder.active()) return;
  const TimePoint now = steady_now();
  if (!operation.state.stands_in) recorder.end(operation.spec.name, now);
  recorder.begin(operation.spec.name, failed ? "ERROR" : word_of(operation.spec), now);
}

void Engine::record_execution(const Active& active, bool begins) {
  TimelineRecorder& recorder = timeline_->recorder();
  if (!recorder.active()) return;
  const TimePoint now = steady_now();
  const std::string activity = execution_of(active.operations.front()->spec);
  for (const auto& operation : active.operations) {
    if (begins) {
      recorder.begin(operation->spec.name, activity, now);
    } else {
      recorder.end(operation->spec.name, now);
    }
  }
}

// What a device is at work on stands in a row of its own: the next operation of the same name may have begun. There it
// is one after the other, as in a stream.
void Engine::record_device(const Active& active, bool begins) {
  TimelineRecorder& recorder = timeline_->recorder();
  if (!recorder.active()) {
    at_work_.clear();
    return;
  }
  const Operation& first = *active.operations.front();
  const std::string row = "cuda:" + std::to_string(first.gpu.device);
  auto& spans = at_work_[first.gpu.device];
  if (begins) {
    spans.emplace_back(active.execution.get(), first.spec.name);
    if (spans.size() == 1) recorder.begin(row, first.spec.name, steady_now());
    return;
  }
  const auto found =
      std::find_if(spans.begin(), spans.end(), [&](const auto& span) { return span.first == active.execution.get(); });
  if (found == spans.end()) return;
  const bool is_shown = found == spans.begin();
  spans.erase(found);
  if (!is_shown) return;
  recorder.end(row, steady_now());
  if (!spans.empty()) recorder.begin(row, spans.front().second, steady_now());
}

void Engine::record_end(const Operation& operation) {
  TimelineRecorder& recorder = timeline_->recorder();
  if (!recorder.active()) return;
  const std::vector<TensorSpec>& tensors = operation.spec.tensors;
  if (tensors.empty()) {
    recorder.end(operation.spec.name, steady_now());
  } else {
    recorder.end(operation.spec.name, steady_now(), name_of(tensors.front().dtype), to_string(tensors.front().shape));
  }
}

// ---- Start and stop, on rank 0

void Engine::start_timeline(const std::string& path, bool mark_cycles) {
  if (rank_ != 0 || abandoned_) return;
  TimelineCommand command;
  {
    const std::lock_guard lock(queue_mutex_);
    if (timeline_path_ == path) return;
    timeline_path_ = path;
    command.run = ++timeline_run_;
  }
  TimelineWriterOptions options;
  options.path = path;
  options.started = steady_now();
  options.start_epoch_us =
      std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::system_clock::now().time_since_epoch())
          .count();
  options.mark_cycles = mark_cycles;
  options.run = command.run;
  options.rank_names = options_.rank_names;
  options.rank_names.resize(static_cast<size_t>(size_));
  try {
    command.writer = std::make_unique<TimelineWriter>(std::move(options));
  } catch (...) {
    const std::lock_guard lock(queue_mutex_);
    timeline_path_.clear();
    throw;
  }
  give_timeline_command(std::move(command));
}

void Engine::stop_timeline() {
  if (rank_ != 0 || abandoned_) return;
  {
    const std::lock_guard lock(queue_mutex_);
    if (timeline_path_.empty()) return;
    timeline_path_.clear();
  }
  give_timeline_command({});
}

// Waits until it took effect, and closes the file that it ends.
void Engine::give_timeline_command(TimelineCommand command) {
  constexpr Duration kMostWait = std::chrono::seconds(30);
  const auto done = std::make_shared<TimelineCommand::Done>();
  command.done = done;
  {
    const std::lock_guard lock(queue_mutex_);
    if (closing_ || failure_)
      throw Error(ErrorKind::kShutDown, "the timeline cannot be changed: Horovod has ended here");
    timeline_commands_.push_back(std::move(command));
    has_timeline_commands_ = true;
    transport_->doorbell().ring();
  }
  if (!wait(done->operation, kMostWait)) throw Error(ErrorKind::kInternal, "the timeline could not be changed in time");
  if (done->operation.error()) throw Error(*done->operation.error());
  if (done->ended != nullptr) done->ended->close();
}

// The engine has failed: who waits for a change hears of it, and the last records are kept, as they tell most.
void Engine::give_up_timeline(const Error& error) {
  timeline_->flush(steady_now(), true);
  std::deque<TimelineCommand> commands;
  {
    const std::lock_guard lock(queue_mutex_);
    commands.swap(timeline_commands_);
  }
  const Error reason(error.kind(), std::string("the timeline cannot be changed: ") + error.what());
  for (const TimelineCommand& command : commands) command.done->operation.fail(reason);
  if (ending_timeline_) ending_timeline_->operation.fail(reason);
  ending_timeline_.reset();
}

void Engine::follow_timeline_commands() {
  if (!has_timeline_commands_ && !ending_timeline_ && !timeline_->recorder().more()) return;
  const TimePoint now = steady_now();
  if (ending_timeline_ && timeline_->stopped(now)) {
    ending_timeline_->ended = timeline_->take_writer();
    ending_timeline_->operation.complete();
    ending_timeline_.reset();
  }
  std::optional<TimelineCommand> command;
  if (!ending_timeline_) {
    const std::lock_guard lock(queue_mutex_);
    if (!timeline_commands_.empty()) {
      command = std::move(timeline_commands_.front());
      timeline_commands_.pop_front();
    }
    has_timeline_commands_ = !timeline_commands_.empty();
  }
  if (command && command->writer != nullptr) {
    command->done->ended = timeline_->start(std::move(command->writer), command->run, now);
    command->done->operation.complete();
  } else if (command) {
    timeline_->stop(now);
    ending_timeline_ = command->done;
  }
  timeline_->flush(now);
}

// The records of the last moments are wanted even if this rank ends first. Returns whether they are here.
bool Engine::timeline_has_ended() {
  if (!timeline_->writing()) {
    timeline_->flush(steady_now(), true);
    return true;
  }
  if (!timeline_->stopping()) timeline_->stop(steady_now());
  return timeline_->stopped(steady_now());
}

// ---- Tuning, on the coordinator of all ranks

void Engine::note_step(const ProcessSet& set, const Operation& operation) {
  if (autotuner_ == nullptr || autotuner_->finished() || set.id != 0) return;
  if (operation.spec.kind != OpKind::kAllreduce || !steps_.note(operation.spec.name)) return;
  autotuner_->step_ended(steady_now());
  set.negotiator->set_fusion_threshold(autotuner_->fusion_threshold());
  if (autotuner_->finished()) options_.log(LogLevel::kInfo, "autotune: " + autotuner_->reason());
  if (const auto error = autotuner_->error()) options_.log(LogLevel::kWarning, error->what());
}

void Engine::note_batch(const Active& active) {
  if (autotuner_ == nullptr || autotuner_->finished() || active.set->id != 0) return;
  if (active.operations.front()->spec.kind != OpKind::kAllreduce) return;
  size_t bytes = 0;
  for (const auto& operation : active.operations) bytes += operation->spec.total_bytes();
  autotuner_->record_batch(bytes, active.operations.size(), active.started, steady_now());
}

}  // namespace hvd
