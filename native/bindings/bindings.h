// The Python face of the engine; the only folder that knows Python.
#pragma once

#include <nanobind/nanobind.h>

namespace hvd::bindings {

void bind_buffer(nanobind::module_& module);
void bind_engine(nanobind::module_& module);
void register_errors();

}  // namespace hvd::bindings
