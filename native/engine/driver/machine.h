// The engine as a state machine: what one pass does, and how all of it fails or ends. Only who drives may touch it,
// which is why it lies in a Guarded.
//
// Failure: the loss of a peer, or an error that cannot be put on one operation, fails everything that is pending here
// and all that is submitted later, and is told to the other ranks, so that all report the same first cause.
#pragma once

#include <optional>
#include <string>

#include "engine/agreement/agreement.h"
#include "engine/devices/operation_devices.h"
#include "engine/execution/backends.h"
#include "engine/execution/completion.h"
#include "engine/execution/executions.h"
#include "engine/execution/tuning.h"
#include "engine/messages/control.h"
#include "engine/messages/job_info.h"
#include "engine/submission/submission.h"
#include "engine/timeline/observer.h"
#include "engine/watch/position.h"
#include "engine/watch/watch.h"
#include "transport/transport.h"

namespace hvd {

struct MachineOptions {
  AgreementOptions agreement;
  WatchOptions watch;
  std::optional<AutotuneOptions> autotune;  // tunes the fusion threshold
};

class Machine {
 public:
  // What threads may use that do not drive, too.
  struct Neighbors {
    const JobInfo& job;
    Transport& transport;
    ControlPlane& control;
    Submission& submission;
    OperationDevices& devices;
    Observer& observer;
    Position& position;
    Counters& counters;
  };

  Machine(Neighbors neighbors, Backends backends, const MachineOptions& options);

  // Does all that can be done without waiting, once; returns whether it did anything. `look_for_lost`: at all
  // connections, even if nothing happened to them. Throws nothing: errors fail the engine.
  bool pass(bool look_for_lost);

  // What drives cannot sleep or wake others any more, so nothing works.
  void give_up(const Error& error) { fail(error, true); }
  // When it is closed: lets go of the transport, which is about to go.
  void release() { executions_.release(); }
  // Nothing more will happen.
  [[nodiscard]] bool closed() const { return closed_; }
  [[nodiscard]] bool is_executing() const { return !executions_.active().empty(); }
  // Whether a pass may do something though no event comes. `checks`: counting what is due at a later time.
  [[nodiscard]] bool has_work(bool checks) const;
  // Whether peers are expected to send something, or wait for what could not be sent.
  [[nodiscard]] bool expects_events();
  // How long nothing is due, if anything is.
  [[nodiscard]] std::optional<Duration> until_next_check() const;
  // Of operations that are done; to be called without a lock.
  [[nodiscard]] bool has_callbacks() const { return completion_.has_callbacks(); }
  [[nodiscard]] Completion::Callbacks take_callbacks() { return completion_.take_callbacks(); }

 private:
  bool pass_or_throw(bool look_for_lost);
  bool take_submissions();
  bool receive_messages();
  void handle(int peer, Message& message);
  bool look_for_lost_peers(bool all);
  [[nodiscard]] Error lost(int peer) const;
  void fail(const Error& error, bool tell_peers);
  void leave();
  void send_to_all(const Message& message);

  const Neighbors with_;
  Completion completion_;
  Tuning tuning_;
  Executions executions_;
  Agreement agreement_;
  Watch watch_;
  bool failed_ = false;
  bool closed_ = false;
};

}  // namespace hvd
