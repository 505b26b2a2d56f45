// A communicator of NCCL with its stream, and the batches on their way through it.
//
// What waits for other ranks happens inside NCCL, in the background: its communicators do not block. So a communicator
// is a state machine that the thread of NCCL turns: it is made, a batch is launched, the next one when that is on the
// stream, and meanwhile others are turned. Batches keep their order.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/bell.h"
#include "backend/nccl/abi.h"
#include "backend/nccl/calls.h"
#include "backend/nccl/library.h"
#include "backend/nccl/nccl_backend.h"
#include "base/clock.h"
#include "base/error.h"

namespace hvd::nccl {

// Tells those who wait that something changed.
class Signal {
 public:
  void notify() {
    const std::lock_guard lock(mutex_);
    changed_.notify_all();
  }
  // Returns whether the condition, which others make true before they notify, came true in time.
  template <class Condition>
  bool wait_for(Duration timeout, Condition condition) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, timeout, condition);
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
};

// A batch on its way. The thread of NCCL moves it on, the engine looks.
class Task {
 public:
  enum class Stage : uint8_t { kQueued, kLaunching, kHandedOver, kDone, kFailed, kDropped };

  Task(Batch batch, Calls calls) : batch_(std::move(batch)), calls_(std::move(calls)) {}

  [[nodiscard]] Stage stage() const { return stage_.load(std::memory_order_acquire); }
  [[nodiscard]] const device::SharedEvent& finished() const { return finished_; }  // since kHandedOver
  [[nodiscard]] const Error& error() const { return *error_; }                     // of kFailed
  // Whether the device has been told to read and write its memory.
  [[nodiscard]] bool touched() const { return touched_.load(std::memory_order_acquire); }
  // Returns whether it was not launched, and now never is.
  bool drop();

 private:
  friend class Communicator;
  bool begin_launch();
  void move_to(Stage stage) { stage_.store(stage, std::memory_order_release); }
  void fail(const Error& error);

  Batch batch_;
  Calls calls_;
  device::SharedEvent finished_;
  std::optional<Error> error_;
  std::atomic<bool> touched_{false};
  std::atomic<Stage> stage_{Stage::kQueued};
};

// What the thread has to look after, the most urgent last.
enum class Attention : uint8_t { kNone, kDevice, kLibrary };

class Communicator : public std::enable_shared_from_this<Communicator> {
 public:
  // Throws Error if the device refuses a stream.
  Communicator(std::shared_ptr<const Library> library, CommunicatorSpec spec, NcclOptions options,
               std::shared_ptr<Bell> bell, std::shared_ptr<Signal> signal);
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  ~Communicator();

  // These are called by the thread of NCCL.
  void add(std::shared_ptr<Task> task);
  // Does what can be done without waiting; returns whether something happened.
  bool turn(TimePoint now);
  [[nodiscard]] Attention attention() const;
  // No task comes any more: ends it in good order, once all are done.
  void retire() { retiring_ = true; }
  [[nodiscard]] bool closed() const { return phase_ == Phase::kClosed; }
  // Fails all tasks and aborts.
  void break_off(const Error& error);

  // Any thread may do this, and does not wait: a thread of its own ends all kernels of the communicator.
  void abort();
  // Whether the device does nothing for this communicator any more.
  [[nodiscard]] bool ended() const { return ended_->load(std::memory_order_acquire); }

 private:
  enum class Phase : uint8_t { kNew, kCreating, kReady, kLaunching, kFailing, kFinalizing, kClosed };

  [[nodiscard]] bool calls_nccl() const { return spec_.devices.size() > 1 || options_.calls_alone; }
  [[nodiscard]] std::string who() const;
  void check(Result result, const char* call, const std::string& what) const;
  [[nodiscard]] Result poll(const char* call, const std::string& what) const;

  bool step(TimePoint now);
  void create(TimePoint now);
  bool go_on_creating(TimePoint now);
  void launch(const std::shared_ptr<Task>& task);
  void call_group(Task& task);
  [[nodiscard]] RedOp operation_of(const Task& task);
  bool go_on_launching();
  void hand_over(const std::shared_ptr<Task>& task);
  bool take_finished(TimePoint now);
  bool end(TimePoint now);
  [[nodiscard]] Error completed(const Error& error) const;
  void fail(const Error& error, TimePoint tell_at);
  [[noreturn]] void throw_late() const;

  std::shared_ptr<const Library> library_;
  CommunicatorSpec spec_;
  NcclOptions options_;
  std::shared_ptr<Bell> bell_;
  std::shared_ptr<Signal> signal_;
  Stream stream_;
  std::atomic<RawCommunicator> raw_{nullptr};
  std::atomic<bool> aborting_{false};
  std::shared_ptr<std::atomic<bool>> ended_ = std::make_shared<std::atomic<bool>>(false);

  // Only of the thread of NCCL.
  Phase phase_ = Phase::kNew;
  RawCommunicator made_ = nullptr;
  std::deque<std::shared_ptr<Task>> queue_;
  std::shared_ptr<Task> launching_;
  std::optional<RedOp> own_op_;  // of what is launched
  std::deque<std::shared_ptr<Task>> in_flight_;
  std::optional<Error> error_;
  TimePoint deadline_{};
  TimePoint last_check_{};
  bool retiring_ = false;
};

}  // namespace hvd::nccl
