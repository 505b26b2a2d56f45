// What moves the data of an engine.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "backend/backend.h"
#include "backend/native/native_backend.h"

namespace hvd {

struct Backends {
  std::unique_ptr<Backend> cpu;
  std::unique_ptr<Backend> gpu;  // none if tensors on GPUs are refused
  // From one rank to another: over the engine's own links, also where MPI executes collectives.
  std::unique_ptr<NativeBackend> transfers;
  std::function<uint64_t()> num_nccl_batches = [] { return uint64_t{0}; };
};

}  // namespace hvd
