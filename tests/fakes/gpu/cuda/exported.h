// How functions of the driver begin.
#pragma once

#include "cuda/current.h"
#include "cuda/settings.h"

#define EXPORTED extern "C" __attribute__((visibility("default")))

// Returns from the function what it must say before it does anything.
#define BEGIN_CALL(function)                \
  static ::fake_cuda::Call call(#function); \
  if (const ::fake_cuda::Result failed = call.begin()) return failed

#define RETURN_IF_FAILED(expression) \
  if (const ::fake_cuda::Result failed = (expression)) return failed
