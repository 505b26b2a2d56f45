// A collective as an operation of MXNet's engine. It works in place: what it writes, MXNet lets nobody touch meanwhile.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bindings/kernels/call.h"
#include "bindings/mxnet/mx_interface.h"

namespace hvd::mxnet {

struct FreeArray {
  void operator()(void* array) const { mx.NDArrayFree(array); }
};
using ArrayPtr = std::unique_ptr<void, FreeArray>;

// What MXNet keeps from the push to the end, also if it skips the operation because an array holds an error already.
struct Pushed {
  kernels::Call call;
  std::string name;  // for MXNet
  std::vector<ArrayPtr> arrays;
  std::vector<DType> dtypes;
};

// Runs it on a worker of MXNet's, which it does not hold up.
void execute(const Pushed& pushed, const OnComplete& on_complete);

}  // namespace hvd::mxnet
