#include "bindings/bindings.h"

NB_MODULE(_native, module) {
  module.doc() = "The native engine of Horovod.";
  // Interpreters may end with objects that somebody still holds; users should not read about it.
  nanobind::set_leak_warnings(false);
  hvd::bindings::register_errors();
  hvd::bindings::bind_kernels(module);
  hvd::bindings::bind_buffer(module);
  hvd::bindings::bind_tensor(module);
  hvd::bindings::bind_plan(module);
  hvd::bindings::bind_gpu(module);
  hvd::bindings::bind_mpi(module);
  hvd::bindings::bind_options(module);
  hvd::bindings::bind_engine(module);
}
