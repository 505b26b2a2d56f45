// Where a training step begins: a script submits the same names in every step.
#pragma once

#include <string>
#include <unordered_set>

namespace hvd {

class StepMarker {
 public:
  // An operation of this name is executed; returns whether a new step begins with it. The first name that comes round
  // again marks the steps, until it stays away for many operations.
  bool note(const std::string& name) {
    if (name == marker_) {
      since_marker_ = 0;
      return true;
    }
    if (!marker_.empty() && ++since_marker_ < kMostInStep) return false;
    if (!marker_.empty()) marker_.clear();
    if (seen_.size() >= kMostInStep) seen_.clear();
    if (seen_.insert(name).second) return false;
    marker_ = name;
    since_marker_ = 0;
    seen_.clear();
    return true;
  }

 private:
  static constexpr size_t kMostInStep = 10000;

  std::unordered_set<std::string> seen_;
  std::string marker_;
  size_t since_marker_ = 0;
};

}  // namespace hvd
