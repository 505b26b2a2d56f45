// Why a kernel has no result: what a framework's own kind of error follows from.
#pragma once

#include <cstdint>
#include <string>

#include "base/error.h"

namespace hvd::kernels {

enum class Trouble : uint8_t {
  kNotInitialized,  // there is no job
  kUnknownProcessSet,
  kNotMember,    // of the process set that was asked about
  kUnsupported,  // there is no such reduction
  kBadArgument,
  kInterrupted,  // by a signal, while the caller waited; memory is still in use
  kEngine,       // `kind` says which
};

struct Failure {
  Trouble trouble = Trouble::kEngine;
  std::string text;
  ErrorKind kind = ErrorKind::kInternal;
};

}  // namespace hvd::kernels
