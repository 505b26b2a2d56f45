#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "backend/mpi/mpi_process.h"
#include "bindings/bindings.h"
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
  nb::class_<EngineOptions>(module, "EngineOptions")
      .def(
          "__init__",
          [](EngineOptions* self, size_t fusion_threshold, size_t cache_capacity,
             std::optional<double> stall_check_time_s, double stall_shutdown_time_s, double deadlock_timeout_s,
             std::vector<std::string> rank_names, bool deterministic, int least_log_level, bool log_time,
             std::tuple<int, int, int> stack_dump, bool fuse_groups, int core, int num_cores,
             std::optional<AutotuneOptions> autotune, const std::string& allreduce_algorithm,
             const CostConstants& costs, std::shared_ptr<mpi::MpiWorld> mpi_world, std::optional<GpuOptions> gpu) {
            auto* options = new (self) EngineOptions();
            options->plans = {.allreduce = algorithm_named(allreduce_algorithm), .costs = costs};
            options->fusion_threshold = fusion_threshold;
            options->cache_capacity = cache_capacity;
            if (stall_check_time_s) options->stall_check_time = from_seconds(*stall_check_time_s);
            options->stall_shutdown_time = from_seconds(stall_shutdown_time_s);
            options->deadlock_timeout = from_seconds(deadlock_timeout_s);
            options->rank_names = std::move(rank_names);
            options->deterministic = deterministic;
            options->log = log_sink_of(least_log_level, log_time);
            const auto [signal, fd, thread] = stack_dump;
            options->stack_dump = {signal, fd, thread};
            options->fuse_groups = fuse_groups;
            options->core = core;
            options->num_cores = num_cores;
            if (autotune) autotune->initial_threshold = fusion_threshold;
            options->autotune = std::move(autotune);
            options->mpi = std::move(mpi_world);
            options->gpu = std::move(gpu);
          },
          nb::kw_only(), nb::arg("fusion_threshold") = size_t{64} << 20, nb::arg("cache_capacity") = 1024,
          nb::arg("stall_check_time_s") = nb::none(), nb::arg("stall_shutdown_time_s") = 0.0,
          nb::arg("deadlock_timeout_s") = 0.0, nb::arg("rank_names") = std::vector<std::string>(),
          nb::arg("deterministic") = false, nb::arg("least_log_level") = static_cast<int>(LogLevel::kWarning),
          nb::arg("log_time") = false, nb::arg("stack_dump") = std::tuple<int, int, int>(),
          nb::arg("fuse_groups") = true, nb::arg("core") = -1, nb::arg("num_cores") = 0,
          nb::arg("autotune") = nb::none(), nb::arg("allreduce_algorithm") = "auto", nb::arg("costs") = CostConstants(),
          nb::arg("mpi") = nb::none(), nb::arg("gpu") = nb::none());
}

}  // namespace hvd::bindings
