// What a test asks of the fake NCCL: exported by libfake_nccl.so beside the functions of NCCL.
// FAKE_NCCL_CONTROLS(X) lists them as X(type of result, name, (parameters)).
#pragma once

#include <cstdint>

// Follows a specification as HVD_FAKE_NCCL does, see injection.h; an empty one takes all rules back, those of the
// environment, too. Returns 0 if it is not understood.
//   int configure(specification)
// Lets go on what a rule made hang.
//   void release()
// How many communicators are alive.
//   int64_t communicators()
// How often a function was called, by its exported name.
//   int64_t calls(function)
// Forgets counted calls, and rules as configure("") does.
//   void reset()
// Wrong uses of NCCL stand with those of the driver: fake_cuda_wrong_uses().
#define FAKE_NCCL_CONTROLS(X)                    \
  X(int, configure, (const char* specification)) \
  X(void, release, ())                           \
  X(int64_t, communicators, ())                  \
  X(int64_t, calls, (const char* function))      \
  X(void, reset, ())
