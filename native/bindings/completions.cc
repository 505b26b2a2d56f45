#include "bindings/completions.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>

#include <utility>

#include "bindings/bindings.h"
#include "bindings/interpreter_lock.h"
#include "bindings/kept_objects.h"
#include "bindings/waiting_threads.h"

namespace nb = nanobind;

namespace hvd::bindings {

void Completions::put(Keeper object) {
  const std::lock_guard lock(mutex_);
  if (closed_) return;
  objects_.push_back(std::move(object));
  changed_.notify_one();
}

std::vector<Keeper> Completions::take(std::optional<double> timeout_s) {
  const InterpreterUnlocked unlocked;
  WaitsLong waits_long;
  waits_long.begin();  // for other threads of this process, to those who look for a deadlock
  std::unique_lock lock(mutex_);
  const auto is_due = [this] { return closed_ || !objects_.empty(); };
  if (timeout_s) {
    changed_.wait_for(lock, from_seconds(*timeout_s), is_due);
  } else {
    changed_.wait(lock, is_due);
  }
  return std::exchange(objects_, {});
}

void Completions::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  changed_.notify_all();
}

bool Completions::closed() const {
  const std::lock_guard lock(mutex_);
  return closed_;
}

void bind_completions(nb::module_& module) {
  nb::class_<Completions>(module, "Completions",
                          "A list of the objects that were given to `Handle.notify` with operations that have ended.")
      .def(nb::init<>())
      .def(
          "take",
          [](Completions& self, std::optional<double> timeout_s) {
            const DropEnded drops;
            nb::list taken;
            for (Keeper& object : self.take(timeout_s)) taken.append(take_kept(std::move(object)));
            return taken;
          },
          nb::arg("timeout_s") = nb::none(), nb::sig("def take(self, timeout_s: float | None = None) -> list[object]"),
          "Wait without the GIL until an operation has ended, and return the objects of all that have, in their order; "
          "nothing when the time is over or the list was closed. Signal handlers do not run meanwhile: call it on a "
          "thread of its own.")
      .def("close", &Completions::close, "End all waits; the objects of operations that end later are dropped.")
      .def_prop_ro("closed", &Completions::closed);
}

}  // namespace hvd::bindings
