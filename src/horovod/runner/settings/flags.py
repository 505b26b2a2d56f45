"""The tuning flags of ``horovodrun`` as data: each becomes one variable of the ranks.

A flag that was not given has the value None and leaves an inherited variable as it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from horovod.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

MIB = 1024 * 1024


@dataclass(frozen=True)
class Flag:
    """One tuning flag.

    Attributes:
        name: without dashes in front; the words of a switch that turns it on.
        variable: the environment variable that carries the value to the ranks.
        section: the heading under which ``--help`` lists it.
        help: one line.
        kind: int, float, str, or bool for a switch.
        off: the words that turn a switch off.
        aliases: older (on, off) spellings of a switch.
        minimum, maximum: bounds of a number, both included.
        scale: what one unit of the flag is in units of the variable.
        negated: a switch whose variable means the opposite of the flag.
        needs: the attribute of another flag without which this one is not passed on.
        choices: the only texts allowed.
        key: of the config file, as ``section.key``.
        hidden_key: an older key of the config file; of a switch, it means the opposite.
    """

    name: str
    variable: str
    section: str
    help: str
    kind: type[int] | type[float] | type[str] | type[bool]
    off: str = ""
    aliases: tuple[tuple[str, str], ...] = ()
    minimum: float = 0
    maximum: float = float("inf")
    scale: int = 1
    negated: bool = False
    needs: str = ""
    choices: tuple[str, ...] = ()
    key: str = ""
    hidden_key: str = ""

    @property
    def attribute(self) -> str:
        """The key under which the parsed value is found."""
        return self.name.replace("-", "_")


def _switch(name: str, variable: str, section: str, help: str, **more: Any) -> Flag:
    return Flag(name, variable, section, help, bool, **{"off": f"no-{name}", **more})


_PARAMS = "tuning"
_AUTOTUNE = "autotune"
_TIMELINE = "timeline"
_STALL = "stall check"
_LIBRARY = "libraries"
_LOGGING = "logging"

_WITHOUT_EFFECT = "no effect; accepted for old scripts"

FLAGS: tuple[Flag, ...] = (
    Flag(
        "fusion-threshold-mb",
        "HOROVOD_FUSION_THRESHOLD",
        _PARAMS,
        "MiB of tensors that may travel in one batch; 0 turns fusion off",
        int,
        scale=MIB,
        key="params.fusion_threshold_mb",
    ),
    Flag(
        "cycle-time-ms",
        "HOROVOD_CYCLE_TIME",
        _PARAMS,
        _WITHOUT_EFFECT,
        float,
        key="params.cycle_time_ms",
    ),
    Flag(
        "cache-capacity",
        "HOROVOD_CACHE_CAPACITY",
        _PARAMS,
        "names whose negotiation is remembered; 0 turns the cache off",
        int,
        key="params.cache_capacity",
    ),
    _switch(
        "hierarchical-allreduce",
        "HOROVOD_HIERARCHICAL_ALLREDUCE",
        _PARAMS,
        _WITHOUT_EFFECT,
        key="params.hierarchical_allreduce",
    ),
    _switch(
        "hierarchical-allgather",
        "HOROVOD_HIERARCHICAL_ALLGATHER",
        _PARAMS,
        _WITHOUT_EFFECT,
        key="params.hierarchical_allgather",
    ),
    _switch(
        "torus-allreduce",
        "HOROVOD_TORUS_ALLREDUCE",
        _PARAMS,
        _WITHOUT_EFFECT,
        key="params.torus_allreduce",
    ),
    _switch(
        "autotune",
        "HOROVOD_AUTOTUNE",
        _AUTOTUNE,
        "find the best fusion threshold in the first steps of training",
        key="autotune.enabled",
    ),
    Flag(
        "autotune-log-file",
        "HOROVOD_AUTOTUNE_LOG",
        _AUTOTUNE,
        "CSV file that records each sample",
        str,
        needs="autotune",
        key="autotune.log_file",
    ),
    Flag(
        "autotune-warmup-samples",
        "HOROVOD_AUTOTUNE_WARMUP_SAMPLES",
        _AUTOTUNE,
        "samples to discard at the start",
        int,
        needs="autotune",
        key="autotune.warmup_samples",
    ),
    Flag(
        "autotune-steps-per-sample",
        "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE",
        _AUTOTUNE,
        "steps in one sample",
        int,
        needs="autotune",
        key="autotune.steps_per_sample",
    ),
    Flag(
        "autotune-bayes-opt-max-samples",
        "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES",
        _AUTOTUNE,
        "samples after which tuning ends",
        int,
        needs="autotune",
        key="autotune.bayes_opt_max_samples",
    ),
    Flag(
        "autotune-gaussian-process-noise",
        "HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE",
        _AUTOTUNE,
        _WITHOUT_EFFECT,
        float,
        maximum=1,
        needs="autotune",
        key="autotune.gaussian_process_noise",
    ),
    Flag(
        "timeline-filename",
        "HOROVOD_TIMELINE",
        _TIMELINE,
        "timeline of all ranks, a file on the host of rank 0; DYNAMIC waits for start_timeline",
        str,
        key="timeline.filename",
    ),
    _switch(
        "timeline-mark-cycles",
        "HOROVOD_TIMELINE_MARK_CYCLES",
        _TIMELINE,
        "mark each answer of the coordinator in the timeline",
        needs="timeline_filename",
        key="timeline.mark_cycles",
    ),
    _switch(
        "stall-check",
        "HOROVOD_STALL_CHECK_DISABLE",
        _STALL,
        "report ranks that have not submitted an operation",
        negated=True,
        key="stall_check.enabled",
    ),
    Flag(
        "stall-check-warning-time-seconds",
        "HOROVOD_STALL_CHECK_TIME_SECONDS",
        _STALL,
        "seconds until missing ranks are reported",
        int,
        key="stall_check.warning_time_seconds",
    ),
    Flag(
        "stall-check-shutdown-time-seconds",
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS",
        _STALL,
        "seconds until a stalled job ends; 0 means never",
        int,
        key="stall_check.shutdown_time_seconds",
    ),
    Flag(
        "deadlock-timeout",
        "HOROVOD_DEADLOCK_TIMEOUT",
        _STALL,
        "seconds until a job ends whose ranks wait for each other; 0 means never",
        int,
        key="stall_check.deadlock_timeout",
    ),
    _switch(
        "mpi-threads-disable",
        "HOROVOD_MPI_THREADS_DISABLE",
        _LIBRARY,
        "initialize MPI for Horovod's own thread only: the program must not call MPI",
        key="library_options.mpi_threads_disable",
    ),
    Flag(
        "num-streams",
        "HOROVOD_NUM_STREAMS",
        _LIBRARY,
        "TCP connections for data between two ranks of different hosts",
        int,
        key="library_options.num_streams",
    ),
    Flag(
        "num-nccl-streams",
        "HOROVOD_NUM_NCCL_STREAMS",
        _LIBRARY,
        _WITHOUT_EFFECT,
        int,
        key="library_options.num_nccl_streams",
    ),
    Flag(
        "thread-affinity",
        "HOROVOD_THREAD_AFFINITY",
        _LIBRARY,
        "cores for the engine threads: one id per local rank, separated by commas",
        str,
        key="library_options.thread_affinity",
    ),
    Flag(
        "gloo-timeout-seconds",
        "HOROVOD_GLOO_TIMEOUT_SECONDS",
        _LIBRARY,
        "seconds to connect to a peer",
        int,
        key="library_options.gloo_timeout_seconds",
    ),
    Flag(
        "log-level",
        "HOROVOD_LOG_LEVEL",
        _LOGGING,
        "lowest level to log: TRACE, DEBUG, INFO, WARNING, ERROR or FATAL",
        str,
        choices=("TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "FATAL"),
        key="logging.level",
    ),
    Flag(
        "log-with-timestamp",
        "HOROVOD_LOG_HIDE_TIME",
        _LOGGING,
        "prefix log lines with the time",
        bool,
        off="log-without-timestamp",
        aliases=(("no-log-hide-timestamp", "log-hide-timestamp"),),
        negated=True,
        key="logging.with_timestamp",
        hidden_key="logging.hide_timestamp",
    ),
)


def variables_of(values: Mapping[str, Any], flags: tuple[Flag, ...] = FLAGS) -> dict[str, str]:
    """Turns the values of tuning flags into environment variables.

    Args:
        values: by :attr:`Flag.attribute`; a missing key or None means that the flag was not given.
        flags: the table to use.

    Returns:
        Only the variables of flags that were given.

    Raises:
        UsageError: a number is out of its bounds, or the shutdown time of the stall check does
            not exceed its warning time.
    """
    variables = {}
    for flag in flags:
        value = values.get(flag.attribute)
        if value is None:
            continue
        _check_bounds(flag, value)
        if not flag.needs or values.get(flag.needs):
            variables[flag.variable] = _text(flag, value)
    _check_stall_times(values)
    return variables


def bounds_of(flag: Flag) -> str:
    """The bounds of a number in words.

    Example:
        >>> bounds_of(FLAGS[0])
        'at least 0'
    """
    if flag.maximum == float("inf"):
        return f"at least {flag.minimum:g}"
    return f"between {flag.minimum:g} and {flag.maximum:g}"


def _check_bounds(flag: Flag, value: Any) -> None:
    if flag.kind in (int, float) and not flag.minimum <= value <= flag.maximum:
        raise UsageError(f"--{flag.name} is {value}, but must be {bounds_of(flag)}")


def _check_stall_times(values: Mapping[str, Any]) -> None:
    warning = values.get("stall_check_warning_time_seconds")
    shutdown = values.get("stall_check_shutdown_time_seconds")
    if warning and shutdown and shutdown <= warning:
        raise UsageError(
            f"--stall-check-shutdown-time-seconds is {shutdown}, but must exceed "
            f"--stall-check-warning-time-seconds, which is {warning}"
        )


def _text(flag: Flag, value: Any) -> str:
    if flag.kind is bool:
        return "1" if bool(value) != flag.negated else "0"
    return str(value * flag.scale if flag.kind is int else value)
