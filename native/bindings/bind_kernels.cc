#include <nanobind/stl/string.h>

#include <string>

#include "bindings/bindings.h"
#include "reduce/kernels.h"

namespace nb = nanobind;

namespace hvd::bindings {

void bind_kernels(nb::module_& module) {
  module.def(
      "kernel_isa", [] { return std::string(kernel_isa()); },
      "Return the instructions that reductions of this process use: avx512, avx2 or base.");
  module.def(
      "select_kernel_isa", [](const std::string& isa) { return select_kernel_isa(isa); }, nb::arg("isa"),
      "Make reductions use other instructions, for tests; return False if this processor lacks them.");
}

}  // namespace hvd::bindings
