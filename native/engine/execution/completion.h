// The end of an operation: its name is free, its memory let go of, its callback due, its caller woken.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/submission/submission.h"
#include "engine/timeline/observer.h"

namespace hvd {

// For the thread that drives.
class Completion {
 public:
  using Callbacks = std::vector<std::function<void()>>;

  Completion(Submission& submission, Observer& observer) : submission_(submission), observer_(observer) {}

  // The name is free again before the caller sees the result, so that it can submit the same name at once.
  void finish(Operation& operation, const std::optional<Error>& error = std::nullopt);
  // With everything else: its name need not be free again.
  void fail(Operation& operation, const Error& error);
  // The end of another rank that made this one fail is told from now on: the first cause counts.
  void note_failure() { failed_ = true; }
  void note_cause(const std::string& cause) {
    if (cause_.empty()) cause_ = cause;
  }

  // Of operations that are done now; to be called without a lock.
  [[nodiscard]] bool has_callbacks() const { return !callbacks_.empty(); }
  [[nodiscard]] Callbacks take_callbacks() { return std::exchange(callbacks_, {}); }
  // What this rank tells at its own end, if that follows from the end of another one; may be empty.
  [[nodiscard]] const std::string& cause() const { return cause_; }

 private:
  void complete(Operation& operation, const std::optional<Error>& error);
  void note_cause_of(const Operation& operation, const Error& error);

  Submission& submission_;
  Observer& observer_;
  Callbacks callbacks_;
  std::string cause_;
  bool failed_ = false;
};

}  // namespace hvd
