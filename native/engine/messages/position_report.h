// Where a rank is in its program: what it tells the others when they miss it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace hvd {

// A thread of the interpreter, by pthread_self(), and whether it waits for work that others of the process give it.
struct InterpreterThread {
  uint64_t id = 0;
  bool idle = false;
};

// An operation that a rank waits for.
struct Wait {
  uint32_t set = 0;
  std::string name;
};

// What is told of a rank.
struct PositionReport {
  bool blocked = false;     // it waits for an operation
  bool held = false;        // and goes on in no other way
  std::vector<Wait> waits;  // for what its threads wait now
  std::string operations;   // what it waits for or did last, one line
  std::string activity;     // "sleeps (0 % of a core)"
  std::string stacks;       // may be empty

  // Not told to others.
  bool busy = true;
  std::optional<std::vector<InterpreterThread>> threads;  // none if the interpreter did not tell
};

}  // namespace hvd
