#include <nanobind/stl/string.h>

#include <string>

#include "bindings/bindings.h"
#include "reduce/kernels.h"

namespace nb = nanobind;

namespace hvd::bindings {

void bind_kernels(nb::module_& module) {
  module.def("kernel_isa", [] { return std::string(kernel_isa()); });
  module.def("select_kernel_isa", [](const std::string& isa) { return select_kernel_isa(isa); }, nb::arg("isa"));
}

}  // namespace hvd::bindings
