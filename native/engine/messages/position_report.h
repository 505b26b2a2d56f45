// Where a rank is in its program: what it tells the others when they miss it.
#pragma once

#include <sys/types.h>

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"

namespace hvd {

// A thread of the interpreter, by pthread_self(), and whether it waits for work that others of the process give it.
struct InterpreterThread {
  uint64_t id = 0;
  bool idle = false;
  pid_t native = 0;           // as the system calls it; 0 if nobody knows
  bool in_framework = false;  // it is in a call of a framework that runs Horovod's kernels; or it is idle, and runs
                              // nothing but Horovod or what started this process
};

// An operation that a rank waits for.
struct Wait {
  uint32_t set = 0;
  std::string name;

  auto operator<=>(const Wait&) const = default;
};

// An operation that some members of its set have announced and others have not, by global rank.
struct Unready {
  Wait wait;
  Duration age{};
  std::vector<int32_t> waiting = {};
  std::vector<int32_t> missing = {};
};

// What is told of a rank.
struct PositionReport {
  bool blocked = false;          // it waits for an operation
  bool held = false;             // and goes on in no other way
  std::vector<Wait> waits;       // for what its threads, or kernels of a framework, wait now
  std::vector<Unready> unready;  // of the operations that the inquirer named, those that this rank coordinates
  std::string operations;        // what it waits for or did last, one line
  std::string activity;          // "sleeps (0 % of a core)"
  std::string stacks;            // may be empty

  // Not told to others.
  bool busy = true;
  std::optional<std::vector<InterpreterThread>> threads;  // none if the interpreter did not tell
};

}  // namespace hvd
