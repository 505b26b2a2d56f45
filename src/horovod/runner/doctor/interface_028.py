"""The variables, flags and names of Horovod 0.28, and what became of each: one table.

``docs/upgrading.md`` and the doctor read it. What became of a variable is in the table of settings;
what became of names is in the rules of the doctor and among the modules that are gone. A name
that is not here works as before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from horovod._compat.absent import GONE
from horovod._settings import TABLE
from horovod._settings.setting import Setting, Status
from horovod.runner.doctor.rules import ARGUMENTS, CALLS, MISSING_NAMES, Level, Rule

if TYPE_CHECKING:
    from collections.abc import Iterator

_VARIABLES = """
HOROVOD_ADASUM_MPI_CHUNK_SIZE HOROVOD_ALLOW_MIXED_GPU_IMPL HOROVOD_AUTOTUNE
HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE
HOROVOD_AUTOTUNE_LOG HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE HOROVOD_AUTOTUNE_WARMUP_SAMPLES
HOROVOD_BATCH_D2D_MEMCOPIES HOROVOD_BUILD_ARCH_FLAGS HOROVOD_BUILD_CUDA_CC_LIST
HOROVOD_CACHE_CAPACITY HOROVOD_CCL_CACHE HOROVOD_CMAKE HOROVOD_CONTROLLER HOROVOD_CPU_OPERATIONS
HOROVOD_CROSS_RANK HOROVOD_CROSS_SIZE HOROVOD_CUDA_HOME HOROVOD_CYCLE_TIME HOROVOD_DEBUG
HOROVOD_DISABLE_GROUP_FUSION HOROVOD_DISABLE_NVTX_RANGES HOROVOD_DYNAMIC_PROCESS_SETS
HOROVOD_ELASTIC HOROVOD_ELASTIC_TIMEOUT HOROVOD_ENABLE_ASYNC_COMPLETION HOROVOD_ENABLE_XLA_OPS
HOROVOD_FUSION_THRESHOLD HOROVOD_GLOO_IFACE HOROVOD_GLOO_RENDEZVOUS_ADDR
HOROVOD_GLOO_RENDEZVOUS_PORT HOROVOD_GLOO_TIMEOUT_SECONDS HOROVOD_GPU HOROVOD_GPU_ALLREDUCE
HOROVOD_GPU_OPERATIONS HOROVOD_HIERARCHICAL_ALLGATHER HOROVOD_HIERARCHICAL_ALLREDUCE
HOROVOD_HOSTNAME HOROVOD_LOCAL_RANK HOROVOD_LOCAL_SIZE HOROVOD_LOCAL_VERSION HOROVOD_LOG_HIDE_TIME
HOROVOD_LOG_LEVEL HOROVOD_MPI_THREADS_DISABLE HOROVOD_NCCL_HOME HOROVOD_NUM_NCCL_STREAMS
HOROVOD_NVTX_INCLUDE HOROVOD_RANK HOROVOD_ROCM_HOME HOROVOD_SIZE HOROVOD_SKIP_COMPILE
HOROVOD_SPARK_PYTHONPATH HOROVOD_SPARK_START_TIMEOUT HOROVOD_SPARK_USE_LOCAL_RANK_GPU_INDEX
HOROVOD_SPARK_WORK_DIR HOROVOD_STALL_CHECK_DISABLE HOROVOD_STALL_CHECK_TIME_SECONDS
HOROVOD_STALL_SHUTDOWN_TIME_SECONDS HOROVOD_START_TIMEOUT HOROVOD_THREAD_AFFINITY HOROVOD_TIMELINE
HOROVOD_TIMELINE_MARK_CYCLES HOROVOD_TORUS_ALLREDUCE HOROVOD_WITH_GLOO HOROVOD_WITH_MPI
_HOROVOD_SECRET_KEY
"""
VARIABLES = tuple(_VARIABLES.split())

_FLAGS = """
-v --version -np --num-proc -cb --check-build --disable-cache --start-timeout --network-interfaces
--network-interface --output-filename --verbose --config-file -p --ssh-port -i --ssh-identity-file
--fusion-threshold-mb --cycle-time-ms --cache-capacity --hierarchical-allreduce
--no-hierarchical-allreduce --hierarchical-allgather --no-hierarchical-allgather --torus-allreduce
--no-torus-allreduce --autotune --no-autotune --autotune-log-file --autotune-warmup-samples
--autotune-steps-per-sample --autotune-bayes-opt-max-samples --autotune-gaussian-process-noise
--min-np --min-num-proc --max-np --max-num-proc --slots-per-host --elastic-timeout --reset-limit
--blacklist-cooldown-range --timeline-filename --timeline-mark-cycles --no-timeline-mark-cycles
--no-stall-check --stall-check --stall-check-warning-time-seconds
--stall-check-shutdown-time-seconds --mpi-threads-disable --no-mpi-threads-disable --mpi-args
--tcp --binding-args --num-nccl-streams --thread-affinity --gloo-timeout-seconds --log-level
--log-with-timestamp --log-without-timestamp --log-hide-timestamp --no-log-hide-timestamp
-prefix-timestamp --prefix-output-with-timestamp -H --hosts -hostfile --hostfile
--host-discovery-script --gloo --mpi --jsrun
"""
FLAGS = tuple(_FLAGS.split())

_MAX = Rule(Level.CHANGED, "must not be below -np, and needs an elastic job")
_COOLDOWN = Rule(
    Level.CHANGED,
    "a host cools down for once to twice the lower time, doubled each time; the flag needs an "
    "elastic job",
)

CHANGED_FLAGS = {
    "--disable-cache": Rule(Level.IGNORED, "nothing is cached"),
    "--gloo": Rule(Level.IGNORED, "it is the default, and uses no Gloo"),
    "--mpi": Rule(
        Level.CHANGED, "mpirun starts the ranks as before, but Horovod's engine moves their data"
    ),
    "--jsrun": Rule(
        Level.CHANGED, "jsrun starts the ranks, one resource set per host; the engine moves data"
    ),
    "--log-level": Rule(
        Level.CHANGED, "is the level of the ranks only; --verbose is for the launcher"
    ),
    "--output-filename": Rule(
        Level.CHANGED, "writes files without prefixes, for any number of ranks"
    ),
    "--max-np": _MAX,
    "--max-num-proc": _MAX,
    "--blacklist-cooldown-range": _COOLDOWN,
    **dict.fromkeys(
        ("--slots-per-host", "--reset-limit", "--elastic-timeout"),
        Rule(Level.CHANGED, "is an error without --min-np or --host-discovery-script"),
    ),
    **dict.fromkeys(
        ("--log-hide-timestamp", "--no-log-hide-timestamp"),
        Rule(Level.DEPRECATED, "use --log-without-timestamp or --log-with-timestamp"),
    ),
    "--stall-check-warning-time-seconds": Rule(
        Level.CHANGED, "without it, the time follows from the pace of the job: 10 s to 10 minutes"
    ),
    "--timeline-filename": Rule(
        Level.CHANGED, "the file shows all ranks: a pid is a rank, a tid is a tensor"
    ),
    "--fusion-threshold-mb": Rule(Level.HONORED, "the default is 64 instead of 128"),
}


@dataclass(frozen=True)
class Fate:
    """What became of one part of the interface of Horovod 0.28.

    Attributes:
        kind: "variable", "flag" or "name".
        name: as users write it; of an argument, ``function(argument=…)``.
        level: what a script that uses it has to expect.
        text: what became of it, and what to do.
    """

    kind: str
    name: str
    level: Level
    text: str


def fate_of_variable(setting: Setting) -> Rule:
    """Return what became of a variable."""
    match setting.status:
        case Status.DEPRECATED:
            return Rule(Level.DEPRECATED, f"use {setting.replacement}")
        case Status.BUILD:
            return Rule(Level.IGNORED, "concerned the build, which needs no settings")
        case Status.WITHOUT_EFFECT:
            return Rule(Level.IGNORED, setting.meaning)
        case Status.PLACE:
            return Rule(Level.CHANGED, "is set by the launcher for each rank")
    return Rule(Level.HONORED, setting.meaning)


def fate_of_flag(flag: str) -> Rule:
    """Return what became of a flag of ``horovodrun``; without a change, an honored one."""
    if rule := CHANGED_FLAGS.get(flag):
        return rule
    setting = next((each for each in TABLE.values() if flag in each.flags), None)
    if setting is not None and setting.status in (Status.WITHOUT_EFFECT, Status.DEPRECATED):
        return fate_of_variable(setting)
    return Rule(Level.HONORED, "as before")


def fates() -> Iterator[Fate]:
    """Yield all rows: variables, flags, and the names that changed."""
    for name in VARIABLES:
        rule = fate_of_variable(TABLE[name])
        yield Fate("variable", name, rule.level, rule.text)
    for flag in FLAGS:
        rule = fate_of_flag(flag)
        yield Fate("flag", flag, rule.level, rule.text)
    for name, rule in CALLS.items():
        yield Fate("name", f"{name}()", rule.level, rule.text)
    for (function, argument), rule in ARGUMENTS.items():
        yield Fate("name", f"{function}({argument}=…)", rule.level, rule.text)
    for name, text in MISSING_NAMES.items():
        yield Fate("name", f"{name}()", Level.FAILS, text)
    for name, text in GONE.items():
        yield Fate("name", name, Level.FAILS, text)
