// What moves the data of an engine.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "backend/backend.h"

namespace hvd {

struct Backends {
  std::unique_ptr<Backend> cpu;
  std::unique_ptr<Backend> gpu;  // none if tensors on GPUs are refused
  std::function<uint64_t()> num_nccl_batches = [] { return uint64_t{0}; };
};

}  // namespace hvd
