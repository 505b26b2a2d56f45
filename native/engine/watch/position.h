// Where this rank is in its program, for others that miss it.
//
// The stacks of an interpreter can only be read by a thread of its own, which may have to wait for the interpreter's
// lock. So the engine asks, and goes on: a thread of the adapter answers when it can. If it cannot, native code holds
// the lock; then a signal makes the process write its stacks down, whoever holds what.
#pragma once

#include <sys/types.h>

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "engine/messages/position_report.h"

namespace hvd {

// A signal whose handler writes the stacks of all threads of the interpreter to a descriptor, as Python's faulthandler
// does (https://docs.python.org/3/library/faulthandler.html#faulthandler.register). Signal 0: there is none.
struct StackDump {
  int signal = 0;
  int fd = -1;       // readable from its start, such as a memfd
  pid_t thread = 0;  // that gets the signal
};

class Position {
 public:
  explicit Position(StackDump dump) : dump_(dump) {}

  // For the adapter's thread. Returns true when the stacks are asked for, false after close() or when the time is over.
  bool wait_for_request(Duration timeout);
  void answer(std::string stacks, std::vector<InterpreterThread> threads);
  void close();
  [[nodiscard]] bool closed();

  // For the thread that drives the engine. Starts the measurement and asks for the stacks.
  void request(TimePoint now);
  [[nodiscard]] bool requested() const { return requested_; }
  // The thread that answers, as the system calls it; 0 if there is none.
  [[nodiscard]] pid_t watcher();
  // The answer, once it is there; empty stacks if nobody can tell them.
  [[nodiscard]] std::optional<PositionReport> take(TimePoint now);

 private:
  enum class Stage : uint8_t { kIdle, kAsked, kAnswered };
  void send_signal();
  [[nodiscard]] std::string read_dump() const;
  void measure(PositionReport& report, TimePoint now) const;

  const StackDump dump_;
  std::mutex mutex_;
  std::condition_variable changed_;
  Stage stage_ = Stage::kIdle;
  bool has_watcher_ = false;
  pid_t watcher_ = 0;
  bool closed_ = false;
  std::string stacks_;
  std::vector<InterpreterThread> threads_;

  // Of the engine's side.
  bool requested_ = false;
  bool signalled_ = false;
  TimePoint requested_at_{};
  Duration cpu_time_at_request_{};
};

}  // namespace hvd
