#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "backend/mpi/mpi_process.h"
#include "bindings/bindings.h"
#include "bindings/interpreter_lock.h"

namespace nb = nanobind;

namespace hvd::bindings {
namespace {

using mpi::MpiProcess;
using mpi::MpiWorld;

// Loading and initializing take a while, and other threads of Python go on.
void construct_process(MpiProcess* self, const std::vector<std::string>& candidates, bool all_threads) {
  const InterpreterUnlocked unlocked;
  new (self) MpiProcess(mpi::load_library(candidates), all_threads);
}

template <class Waited>
bool wait(Waited& self, double timeout_s) {
  const InterpreterUnlocked unlocked;
  return self.wait(from_seconds(timeout_s));
}

bool finish(MpiProcess& self, double timeout_s) {
  const InterpreterUnlocked unlocked;
  return self.finish(from_seconds(timeout_s));
}

}  // namespace

void bind_mpi(nb::module_& module) {
  module.def(
      "find_mpi",
      [](const std::vector<std::string>& candidates) {
        const InterpreterUnlocked unlocked;
        const mpi::Library library = mpi::load_library(candidates);
        return std::vector<std::string>{library.path, library.version};
      },
      nb::arg("candidates"),
      "Return the path and the version of the first MPI library that can be used. Candidates are paths, or names for "
      "the system's loader.");
  nb::class_<MpiProcess>(
      module, "MpiProcess",
      "MPI in this process; initializes it on a thread of its own. See native/backend/mpi/mpi_process.h.")
      .def("__init__", &construct_process, nb::arg("candidates"), nb::arg("all_threads"))
      .def("wait", &wait<MpiProcess>, nb::arg("timeout_s"))
      .def_prop_ro("path", [](const MpiProcess& self) { return self.library().path; })
      .def_prop_ro("version", [](const MpiProcess& self) { return self.library().version; })
      .def_prop_ro("rank", &MpiProcess::rank)
      .def_prop_ro("size", &MpiProcess::size)
      .def_prop_ro("all_threads", &MpiProcess::all_threads)
      .def("given_up", [](MpiProcess& self) { return self.thread().given_up(); })
      .def(
          "give_up", [](MpiProcess& self, const std::string& reason) { self.thread().give_up(reason); },
          nb::arg("reason"))
      .def("finish", &finish, nb::arg("timeout_s"))
      .def("abandon", &MpiProcess::abandon);
  nb::class_<MpiWorld>(module, "MpiWorld", "The ranks of a job in MPI; all ranks make it, in the same order.")
      .def(nb::init<std::shared_ptr<MpiProcess>, int, int>(), nb::arg("process"), nb::arg("rank"), nb::arg("size"))
      .def("wait", &wait<MpiWorld>, nb::arg("timeout_s"));
}

}  // namespace hvd::bindings
