// Looks for NCCL once, for whoever needs it first.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "backend/nccl/library.h"

namespace hvd {

// Thread-safe. What is not found is no error: the ranks agree on another way then.
class NcclFinder {
 public:
  // `wanted`: whether this rank would use it at all.
  NcclFinder(std::vector<std::string> candidates, bool wanted) : candidates_(std::move(candidates)), wanted_(wanted) {}

  // Takes long the first time, if nobody in the process has loaded the library before.
  void find();
  // nullptr if there is none; `trouble` says why then.
  [[nodiscard]] std::shared_ptr<const nccl::Library> library();
  [[nodiscard]] std::string trouble();

 private:
  const std::vector<std::string> candidates_;
  const bool wanted_;
  std::mutex mutex_;
  bool looked_ = false;
  std::shared_ptr<const nccl::Library> library_;
  std::string trouble_;
};

}  // namespace hvd
