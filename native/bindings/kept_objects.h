// Python objects that operations keep, such as the tensors whose memory they use.
//
// An operation lets go of its object on whatever thread ends it, which must not wait for the interpreter. The object
// then waits in a list without a lock until a thread that has the interpreter drops it: whoever calls the engine next,
// and at the latest the main thread between two instructions of Python.
#pragma once

#include <nanobind/nanobind.h>

#include "engine/submission/operation.h"

namespace hvd::bindings {

// Of no object if it is None.
[[nodiscard]] Keeper keep(nanobind::object object);

// The object that was kept; None if there was none. With the interpreter's lock.
[[nodiscard]] nanobind::object take_kept(Keeper keeper);

// Drops the objects that operations have let go of. To be called with the interpreter's lock and without any other:
// what an object runs when it dies may be anything, calls of the engine and other threads' turns among them.
void drop_ended() noexcept;

// In the child of a fork.
void forget_pending_drop();

// Calls drop_ended() at the end of a scope, also if that ends with an exception. Meanwhile the main thread is not asked
// to drop what ends on this one.
struct DropEnded {
  DropEnded() noexcept;
  DropEnded(const DropEnded&) = delete;
  DropEnded& operator=(const DropEnded&) = delete;
  ~DropEnded();
};

}  // namespace hvd::bindings
