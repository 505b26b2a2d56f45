// N ranks as processes, so that they can die and stop as in real life: no thread of a dead rank says a last word.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "testing/world.h"

namespace hvd::testing {

class Processes {
 public:
  // Says a line to the parent.
  using Say = std::function<void(const std::string& line)>;
  using Body = std::function<void(int rank, Engine& engine, const Say& say)>;

  // Forks; the calling process must have no other threads. A child runs `body`, closes its engine and ends. An
  // exception is said as "exception: …".
  Processes(int size, Wire wire, const EngineOptions& options, const Body& body);
  Processes(const Processes&) = delete;
  Processes& operator=(const Processes&) = delete;
  // Kills those that still run.
  ~Processes();

  // The next line of a rank; empty if it ended, or did not say anything in time.
  [[nodiscard]] std::string read_line(int rank, Duration timeout);
  // Sends a signal, for example SIGKILL or SIGSTOP.
  void signal(int rank, int number);

 private:
  struct Child {
    pid_t pid = -1;
    Fd lines;
    std::string received;
  };
  std::vector<Child> children_;
};

}  // namespace hvd::testing
