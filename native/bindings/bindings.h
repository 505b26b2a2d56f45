// The Python face of the engine; the only folder that knows Python.
#pragma once

#include <nanobind/nanobind.h>

#include <optional>
#include <string>

#include "base/clock.h"
#include "plan/cost.h"

namespace hvd::bindings {

void bind_buffer(nanobind::module_& module);
void bind_kernels(nanobind::module_& module);
void bind_engine(nanobind::module_& module);
void bind_gpu(nanobind::module_& module);      // before bind_engine
void bind_mpi(nanobind::module_& module);      // before bind_engine
void bind_options(nanobind::module_& module);  // before bind_engine
void bind_plan(nanobind::module_& module);
void bind_tensor(nanobind::module_& module);  // behind bind_buffer
void register_errors();

[[nodiscard]] inline Duration from_seconds(double seconds) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
}

// None for "auto". Throws Error (kUsage) for a name that is none.
[[nodiscard]] std::optional<Algorithm> algorithm_named(const std::string& name);

}  // namespace hvd::bindings
