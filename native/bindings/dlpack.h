// DLPack (https://dmlc.github.io/dlpack/latest/): what its numbers for dtypes and devices mean here, and the functions
// of version 1.3 by which a framework tells at once where a tensor is and what it holds.
#pragma once

#include <nanobind/ndarray.h>

#include <cstdint>
#include <optional>

#include "base/dtype.h"

namespace hvd::bindings {

// Kinds of devices.
inline constexpr int kDlpackCpu = 1;
inline constexpr int kDlpackCuda = 2;

// Nothing for those that the engine does not know: complex, quantized or smaller than a byte.
[[nodiscard]] std::optional<DType> dtype_of(nanobind::dlpack::dtype type);

// In a capsule of this name, which is the attribute `__dlpack_c_exchange_api__` of a framework's class.
inline constexpr const char* kDlpackExchangeName = "dlpack_exchange_api";

// As DLPackExchangeAPI of dlpack.h lays it out, with what is not called here left untyped.
struct DlpackExchange {
  uint32_t major;
  uint32_t minor;
  DlpackExchange* previous;
  void (*allocate)();
  void (*managed_from_object)();
  void (*managed_to_object)();
  // Fills in what stays valid as long as nothing changes the tensor; returns 0, or -1 with an exception of Python set.
  int (*view_object)(void* object, nanobind::dlpack::dltensor* tensor);
};

}  // namespace hvd::bindings
