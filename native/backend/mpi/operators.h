// How MPI reduces what Horovod reduces.
#pragma once

#include "backend/mpi/abi.h"
#include "base/dtype.h"

namespace hvd::mpi {

struct Context;

// Minimum and maximum of floating point are this project's own kernels: what MPI's make of a NaN is not defined.
struct Operators {
  Op float_min = nullptr;
  Op float_max = nullptr;
  Op double_min = nullptr;
  Op double_max = nullptr;
};

[[nodiscard]] Operators make_operators(const Context& context);

// The dtype in which values of `dtype` travel and are combined: float32 for half types, so that only the result is
// rounded to them; all others are their own.
[[nodiscard]] DType wire_dtype(DType dtype);

// What to tell MPI of elements of a wire dtype that are combined by `op`. Throws Error (kInternal) for a half type, and
// for Average and Adasum.
struct Reduction {
  Datatype datatype;
  Op op;
};
[[nodiscard]] Reduction reduction_of(DType dtype, ReduceOp op, const Operators& operators);

}  // namespace hvd::mpi
