#include "backend/mpi/operators.h"

#include <array>
#include <string>

#include "backend/mpi/mpi_thread.h"
#include "base/error.h"
#include "reduce/kernels.h"

namespace hvd::mpi {
namespace {

template <DType kDType, ReduceOp kOp>
void combine(const void* in, void* inout, const Count* count, const Datatype* /*datatype*/) {
  auto* result = static_cast<std::byte*>(inout);
  const std::array<const std::byte*, 2> sources{static_cast<const std::byte*>(in), result};
  reduce(kDType, kOp, result, sources, static_cast<size_t>(*count), 1.0);
}

Op make_operator(const Context& context, UserFunction* function) {
  Op made = nullptr;
  context.check(context.functions.op_create(function, 1, &made), "MPI_Op_create");
  return made;
}

// Sums and products of signed integers wrap around, as those of unsigned ones of their size do.
DType unsigned_of(DType dtype) {
  switch (dtype) {
    case DType::kInt8:
      return DType::kUInt8;
    case DType::kInt16:
      return DType::kUInt16;
    case DType::kInt32:
      return DType::kUInt32;
    case DType::kInt64:
      return DType::kUInt64;
    default:
      return dtype;
  }
}

Datatype datatype_of(DType dtype) {
  switch (dtype) {
    case DType::kBool:
    case DType::kUInt8:
      return kUint8;
    case DType::kInt8:
      return kInt8;
    case DType::kUInt16:
      return kUint16;
    case DType::kInt16:
      return kInt16;
    case DType::kUInt32:
      return kUint32;
    case DType::kInt32:
      return kInt32;
    case DType::kUInt64:
      return kUint64;
    case DType::kInt64:
      return kInt64;
    case DType::kFloat32:
      return kFloat;
    case DType::kFloat64:
      return kDouble;
    case DType::kFloat16:
    case DType::kBFloat16:
      break;
  }
  throw Error(ErrorKind::kInternal, "MPI has no type for " + std::string(name_of(dtype)));
}

Op predefined_op(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return kSum;
    case ReduceOp::kProduct:
      return kProd;
    case ReduceOp::kMin:
      return kMin;
    case ReduceOp::kMax:
      return kMax;
    case ReduceOp::kAverage:
    case ReduceOp::kAdasum:
      break;
  }
  throw Error(ErrorKind::kInternal, "MPI has no operation for " + std::string(name_of(op)));
}

}  // namespace

Operators make_operators(const Context& context) {
  return {.float_min = make_operator(context, combine<DType::kFloat32, ReduceOp::kMin>),
          .float_max = make_operator(context, combine<DType::kFloat32, ReduceOp::kMax>),
          .double_min = make_operator(context, combine<DType::kFloat64, ReduceOp::kMin>),
          .double_max = make_operator(context, combine<DType::kFloat64, ReduceOp::kMax>)};
}

DType wire_dtype(DType dtype) {
  return dtype == DType::kFloat16 || dtype == DType::kBFloat16 ? DType::kFloat32 : dtype;
}

Reduction reduction_of(DType dtype, ReduceOp op, const Operators& operators) {
  const bool is_extreme = op == ReduceOp::kMin || op == ReduceOp::kMax;
  const bool is_min = op == ReduceOp::kMin || op == ReduceOp::kProduct;
  // A bool is 0 or 1: the greater one is "or", the lesser one is "and".
  if (dtype == DType::kBool) return {datatype_of(dtype), is_min ? kMin : kMax};
  if (is_extreme && dtype == DType::kFloat32) return {kFloat, is_min ? operators.float_min : operators.float_max};
  if (is_extreme && dtype == DType::kFloat64) return {kDouble, is_min ? operators.double_min : operators.double_max};
  return {datatype_of(is_extreme ? dtype : unsigned_of(dtype)), predefined_op(op)};
}

}  // namespace hvd::mpi
