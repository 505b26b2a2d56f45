// What operations leave behind at their end for a thread of Python: the object that was given with each.
//
// Operations end on any thread, with locks held, and must not wait for the interpreter. They put the object into a list
// and wake the thread that waits for it, which needs the interpreter's lock only then.
#pragma once

#include <nanobind/nanobind.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "engine/submission/operation.h"

namespace hvd::bindings {

class Completions {
 public:
  // From any thread, whatever it holds. Drops the object if the list is closed.
  void put(Keeper object);
  // Waits without the interpreter's lock until there is an object, the time is over or the list is closed; to be called
  // with the lock.
  [[nodiscard]] std::vector<Keeper> take(std::optional<double> timeout_s);
  // Ends all waits; what is put from now on is dropped.
  void close();
  [[nodiscard]] bool closed() const;

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Keeper> objects_;
  bool closed_ = false;
};

void bind_completions(nanobind::module_& module);

}  // namespace hvd::bindings
