// What Python has to know of operations that it does not wait for: how many are in flight, and which failed.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>

#include "bindings/kernels/failure.h"

namespace hvd::mxnet {

class Ledger {
 public:
  void begun();
  void ended();
  void failed(const kernels::Failure& failure);

  [[nodiscard]] int in_flight() const;
  // False if that takes longer.
  [[nodiscard]] bool wait_until_none_is_in_flight(std::chrono::milliseconds timeout);

  // Of those that failed since forget(): the first that ended the job, or else the last; empty if none did.
  [[nodiscard]] std::string failure() const;
  [[nodiscard]] int num_failures() const;
  // Whether every later operation fails, too.
  [[nodiscard]] bool is_over() const;
  void forget();

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  int in_flight_ = 0;
  int num_failures_ = 0;
  bool is_over_ = false;
  std::string failure_;
};

// Never destroyed: operations may end until the process does.
[[nodiscard]] Ledger& ledger();

}  // namespace hvd::mxnet
