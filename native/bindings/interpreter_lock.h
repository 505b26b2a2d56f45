// The interpreter's lock, also where the interpreter ends.
//
// A thread that asks for the lock when the interpreter is ending is ended by Python (before 3.14) with pthread_exit,
// which unwinds its stack. C++ ends the process then, wherever a frame may not throw or catches everything. So such a
// thread stays where it is for ever, as Python itself does it from 3.14 on; the process does not wait for it.
#pragma once

#include <nanobind/nanobind.h>
#include <unistd.h>

namespace hvd::bindings {

// Around what may ask for the lock; end() must be the last statement of the scope.
class StaysIfUnwound {
 public:
  StaysIfUnwound() = default;
  StaysIfUnwound(const StaysIfUnwound&) = delete;
  StaysIfUnwound& operator=(const StaysIfUnwound&) = delete;
  ~StaysIfUnwound() {
    while (!ended_) pause();
  }
  void end() { ended_ = true; }

 private:
  bool ended_ = false;
};

// Gives the lock to others while it exists.
class InterpreterUnlocked {
 public:
  InterpreterUnlocked() : state_(PyEval_SaveThread()) {}
  InterpreterUnlocked(const InterpreterUnlocked&) = delete;
  InterpreterUnlocked& operator=(const InterpreterUnlocked&) = delete;
  // pthread_exit unwinds through it.
  ~InterpreterUnlocked() noexcept(false) {  // NOLINT(bugprone-unsafe-to-allow-exceptions)
    StaysIfUnwound stays;
    PyEval_RestoreThread(state_);
    stays.end();
  }

 private:
  PyThreadState* state_;
};

}  // namespace hvd::bindings
