#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "backend/gpu/gpu_backend.h"
#include "bindings/bindings.h"
#include "bindings/interpreter_lock.h"

namespace nb = nanobind;

namespace hvd::bindings {
namespace {

GpuOperations operations_named(const std::string& name) {
  if (name == "auto") return GpuOperations::kAuto;
  if (name == "nccl") return GpuOperations::kNccl;
  if (name == "staged") return GpuOperations::kStaged;
  throw Error(ErrorKind::kUsage, "tensors on GPUs are reduced by nccl, staged, or auto, not by " + name);
}

void construct_options(GpuOptions* self, std::vector<std::string> driver_candidates,
                       std::vector<std::string> nccl_candidates, const std::string& operations, size_t chunk_bytes,
                       size_t max_pinned_bytes) {
  const GpuOperations wanted = operations_named(operations);
  if (chunk_bytes == 0) throw Error(ErrorKind::kUsage, "a chunk needs at least one byte");
  new (self) GpuOptions{.driver_candidates = std::move(driver_candidates),
                        .nccl_candidates = std::move(nccl_candidates),
                        .operations = wanted,
                        .staged = {.chunk_bytes = chunk_bytes, .max_pinned_bytes = max_pinned_bytes}};
}

std::tuple<std::string, int, int> find_gpu(const std::vector<std::string>& candidates) {
  const InterpreterUnlocked unlocked;
  const auto driver = device::Driver::load(candidates);
  return {driver->path(), driver->version(), driver->device_count()};
}

std::tuple<std::string, int, std::string> find_nccl(const std::vector<std::string>& candidates) {
  const InterpreterUnlocked unlocked;
  const auto library = nccl::load_library(candidates);
  return {library->path, library->version, library->warning};
}

}  // namespace

void bind_gpu(nb::module_& module) {
  const StagedOptions staged;
  nb::class_<GpuOptions>(module, "GpuOptions", "How tensors on GPUs are reduced: native/backend/gpu/gpu_backend.h.")
      .def("__init__", &construct_options, nb::kw_only(), nb::arg("driver_candidates"), nb::arg("nccl_candidates"),
           nb::arg("operations") = "auto", nb::arg("chunk_bytes") = staged.chunk_bytes,
           nb::arg("max_pinned_bytes") = staged.max_pinned_bytes);
  module.def(
      "find_gpu", &find_gpu, nb::arg("candidates"),
      "Return the path and version of the GPU driver's library (13010 is 13.1), and the number of GPUs. A library "
      "that is loaded already is preferred to the candidates.");
  module.def("find_nccl", &find_nccl, nb::arg("candidates"),
             "Return the path and version of NCCL or RCCL (22907 is 2.29.7), and a warning of a known fault or \"\".");
}

}  // namespace hvd::bindings
