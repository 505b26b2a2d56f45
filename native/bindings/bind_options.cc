#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <type_traits>

#include "backend/mpi/mpi_process.h"
#include "bindings/bindings.h"
#include "bindings/keywords.h"
#include "engine/engine.h"

namespace nb = nanobind;

namespace hvd::bindings {
namespace {

// Levels are numbered as LogLevel is; higher ones than kError silence all.
LogSink log_sink_of(int least_level, bool with_time) {
  return [=](LogLevel level, const std::string& message) {
    if (static_cast<int>(level) >= least_level) log_to_stderr(level, message, with_time);
  };
}

struct Wanted {
  EngineOptions engine = {};
  int least_log_level = static_cast<int>(LogLevel::kWarning);
  bool log_time = false;
};

using Option = Keyword<Wanted>;

template <auto Field>
void take(Wanted& wanted, nb::handle value) {
  using Type = std::remove_reference_t<decltype(wanted.engine.*Field)>;
  wanted.engine.*Field = nb::cast<Type>(value);
}

template <auto Field>
void take_seconds(Wanted& wanted, nb::handle value) {
  if (!value.is_none()) wanted.engine.*Field = from_seconds(nb::cast<double>(value));
}

void take_stack_dump(Wanted& wanted, nb::handle value) {
  const auto [signal, fd, thread] = nb::cast<std::tuple<int, int, int>>(value);
  wanted.engine.stack_dump = {signal, fd, thread};
}

constexpr std::array kOptions{
    Option{"fusion_threshold", "int", &take<&EngineOptions::fusion_threshold>},
    Option{"cache_capacity", "int", &take<&EngineOptions::cache_capacity>},
    Option{"stall_check_time_s", "float | None", &take_seconds<&EngineOptions::stall_check_time>},
    Option{"stall_shutdown_time_s", "float", &take_seconds<&EngineOptions::stall_shutdown_time>},
    Option{"deadlock_timeout_s", "float", &take_seconds<&EngineOptions::deadlock_timeout>},
    Option{"rank_names", "collections.abc.Sequence[str]", &take<&EngineOptions::rank_names>},
    Option{"deterministic", "bool", &take<&EngineOptions::deterministic>},
    Option{"least_log_level", "int", [](Wanted& w, nb::handle v) { w.least_log_level = nb::cast<int>(v); }},
    Option{"log_time", "bool", [](Wanted& w, nb::handle v) { w.log_time = nb::cast<bool>(v); }},
    Option{"stack_dump", "tuple[int, int, int]", &take_stack_dump},
    Option{"fuse_groups", "bool", &take<&EngineOptions::fuse_groups>},
    Option{"core", "int", &take<&EngineOptions::core>},
    Option{"num_cores", "int", &take<&EngineOptions::num_cores>},
    Option{"autotune", "AutotuneOptions | None", &take<&EngineOptions::autotune>},
    Option{"allreduce_algorithm", "str",
           [](Wanted& w, nb::handle v) { w.engine.plans.allreduce = algorithm_named(nb::cast<std::string>(v)); }},
    Option{"costs", "CostConstants",
           [](Wanted& w, nb::handle v) { w.engine.plans.costs = nb::cast<CostConstants>(v); }},
    Option{"mpi", "MpiWorld | None", &take<&EngineOptions::mpi>},
    Option{"gpu", "GpuOptions | None", &take<&EngineOptions::gpu>},
};

void construct_engine_options(EngineOptions* self, const nb::kwargs& keywords) {
  Wanted wanted;
  read_keywords("EngineOptions", kOptions, keywords, wanted);
  EngineOptions& options = wanted.engine;
  options.log = log_sink_of(wanted.least_log_level, wanted.log_time);
  if (options.autotune) options.autotune->initial_threshold = options.fusion_threshold;
  new (self) EngineOptions(std::move(options));
}

}  // namespace

void bind_options(nb::module_& module) {
  nb::class_<AutotuneOptions>(module, "AutotuneOptions")
      .def(
          "__init__",
          [](AutotuneOptions* self, bool fixed, int warmup_samples, int steps_per_sample, int max_samples,
             std::string log_path) {
            auto* options = new (self) AutotuneOptions();
            options->fixed = fixed;
            options->warmup_samples = warmup_samples;
            options->steps_per_sample = steps_per_sample;
            options->max_samples = max_samples;
            options->log_path = std::move(log_path);
          },
          nb::kw_only(), nb::arg("fixed") = false, nb::arg("warmup_samples") = 3, nb::arg("steps_per_sample") = 10,
          nb::arg("max_samples") = 20, nb::arg("log_path") = "");
  const std::string signature = signature_of("def __init__(self, *", kOptions, "None");
  nb::class_<EngineOptions>(module, "EngineOptions", "Options of an engine: EngineOptions in native/engine/options.h.")
      .def("__init__", &construct_engine_options, nb::arg("options"), nb::sig(signature.c_str()));
}

}  // namespace hvd::bindings
