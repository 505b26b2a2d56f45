"""The settings that something acts on, each once: variable, meaning, default, bounds and flag."""

from __future__ import annotations

from functools import partial
from typing import Any, TypeVar

from horovod._base.fast_dataclass import dataclass
from horovod._base.log import LEVELS
from horovod._settings.setting import Setting, Status, setting

Value = TypeVar("Value")

MIB = 1024 * 1024
ALLREDUCE_ALGORITHMS = ("auto", "exchange", "direct", "ring", "doubling", "trees", "hierarchical")
CPU_OPERATIONS = ("native", "gloo", "mpi")
GPU_OPERATIONS = ("auto", "nccl", "staged")
SLOW_WORKER = ("off", "report", "replace", "remove")
LOG_LEVELS = tuple(LEVELS)


def _place(name: str, meaning: str, default: Value, **row: Any) -> Value:
    return setting(name, meaning, default, status=Status.PLACE, **row)


@dataclass(frozen=True)
class HonoredSettings:
    """One field per variable that a rank acts on; the row of a field is in its metadata."""

    # -- Start and end

    start_timeout_s: float = setting(
        "HOROVOD_START_TIMEOUT",
        "seconds within which all ranks must start and connect",
        30.0,
        flag="start-timeout",
    )
    grace_s: float = setting(
        "HOROVOD_GRACE_SECONDS",
        "seconds for ranks to end after Ctrl-C, SIGTERM or SIGHUP of the launcher",
        30.0,
        minimum=0,
        flag="grace",
    )
    thread_affinity: tuple[int, ...] = setting(
        "HOROVOD_THREAD_AFFINITY",
        "cores for the engine threads: one id per local rank, separated by commas",
        (),
        minimum=0,
        shown="not bound",
        flag="thread-affinity",
        key="library_options.thread_affinity",
    )

    # -- Jobs that find their store themselves

    secret_key: str = setting(
        "HOROVOD_SECRET_KEY",
        "the job's secret as 64 hexadecimal digits, the same on all ranks, if the user has to "
        "provide one: `openssl rand -hex 32`; see [hosts](hosts.md)",
        "",
        repr=False,
    )
    bootstrap_address: tuple[str, int] | None = setting(
        "HOROVOD_RENDEZVOUS",
        "`host:port` at which rank 0 opens the job's store, if neither `horovodrun` nor the "
        "launcher provides one; needs a secret from the user; see [hosts](hosts.md)",
        None,
        kind=str,
    )
    network_interface: str = setting(
        "HOROVOD_GLOO_IFACE",
        "the network interface at which this rank listens for ranks of other hosts; the launcher "
        "sets it (`--network-interfaces`)",
        "",
        shown="the one that reaches the store",
    )

    # -- Speed

    fusion_threshold: int = setting(
        "HOROVOD_FUSION_THRESHOLD",
        "bytes of tensors that may travel in one batch (the flag takes MiB); 0 turns fusion off",
        64 * MIB,
        minimum=0,
        flag="fusion-threshold-mb",
        key="params.fusion_threshold_mb",
        help="MiB of tensors that may travel in one batch; 0 turns fusion off",
        scale=MIB,
    )
    disable_group_fusion: bool = setting(
        "HOROVOD_DISABLE_GROUP_FUSION",
        "1 keeps the tensors of a grouped operation out of batches with other tensors",
        False,
    )
    cache_capacity: int = setting(
        "HOROVOD_CACHE_CAPACITY",
        "names whose negotiation is remembered; 0 turns the cache off",
        1024,
        minimum=0,
        flag="cache-capacity",
        key="params.cache_capacity",
    )
    num_streams: int = setting(
        "HOROVOD_NUM_STREAMS",
        "TCP connections that carry data between two ranks of different hosts; the same on all "
        "ranks",
        1,
        minimum=1,
        flag="num-streams",
        key="library_options.num_streams",
        help="TCP connections for data between two ranks of different hosts",
    )
    gradient_buckets: bool = setting(
        "HOROVOD_GRADIENT_BUCKETS",
        "0 leaves gradients of `DistributedOptimizer` where autograd puts them; otherwise, on one "
        "host, they are in memory that all ranks share, and are reduced in buckets",
        True,
    )
    allreduce_algorithm: str = setting(
        "HOROVOD_ALLREDUCE_ALGORITHM",
        "the allreduce algorithm, for tests and experts; the same on all ranks: "
        f"{', '.join(ALLREDUCE_ALGORITHMS)}; auto chooses by operation, size and hosts",
        "auto",
        words=ALLREDUCE_ALGORITHMS,
    )
    autotune: bool = setting(
        "HOROVOD_AUTOTUNE",
        "1 tunes settings by measurement while training",
        False,
        flag="autotune",
        key="autotune.enabled",
        help="find the best fusion threshold in the first steps of training",
    )
    autotune_log: str = setting(
        "HOROVOD_AUTOTUNE_LOG",
        "CSV file that records each sample",
        "",
        shown="none",
        flag="autotune-log-file",
        key="autotune.log_file",
        needs="autotune",
    )
    autotune_warmup_samples: int = setting(
        "HOROVOD_AUTOTUNE_WARMUP_SAMPLES",
        "samples to discard at the start",
        3,
        minimum=0,
        flag="autotune-warmup-samples",
        key="autotune.warmup_samples",
        needs="autotune",
    )
    autotune_steps_per_sample: int = setting(
        "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE",
        "steps in one sample",
        10,
        minimum=1,
        flag="autotune-steps-per-sample",
        key="autotune.steps_per_sample",
        needs="autotune",
    )
    autotune_max_samples: int = setting(
        "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES",
        "samples after which tuning ends",
        20,
        minimum=1,
        flag="autotune-bayes-opt-max-samples",
        key="autotune.bayes_opt_max_samples",
        needs="autotune",
    )

    # -- MPI

    cpu_operations: str = setting(
        "HOROVOD_CPU_OPERATIONS",
        "the data plane: native is Horovod's own engine, and gloo means the same; mpi is an "
        "MPI library with the standard binary interface (libmpi_abi), whose mpirun starts the job",
        "native",
        words=CPU_OPERATIONS,
        refusal="unset it, or set it to native or mpi: Intel oneCCL and others are not used",
    )
    mpi_library: str = setting(
        "HOROVOD_MPI_LIBRARY",
        "the file of libmpi_abi, if `HOROVOD_CPU_OPERATIONS` is mpi",
        "",
        shown="found next to mpirun, in the environment of Python, or by the system's loader",
    )
    mpi_threads_disable: bool = setting(
        "HOROVOD_MPI_THREADS_DISABLE",
        "with `HOROVOD_CPU_OPERATIONS=mpi`, 1 initializes MPI for Horovod's own thread only: the "
        "program must not call MPI itself",
        False,
        flag="mpi-threads-disable",
        key="library_options.mpi_threads_disable",
        help="initialize MPI for Horovod's own thread only: the program must not call MPI",
    )

    # -- GPUs

    gpu_operations: str = setting(
        "HOROVOD_GPU_OPERATIONS",
        "the path of tensors on GPUs: auto uses NCCL if possible, and host memory otherwise; "
        "nccl fails if NCCL cannot be used; staged always uses host memory",
        "auto",
        words=GPU_OPERATIONS,
        refusal="unset it, or set it to auto, nccl or staged",
    )
    cuda_library: str = setting(
        "HOROVOD_CUDA_LIBRARY",
        "the file of the GPU driver, libcuda (or libamdhip64)",
        "",
        shown="the one that is loaded already, or the one that the system's loader finds",
    )
    nccl_library: str = setting(
        "HOROVOD_NCCL_LIBRARY",
        "the file of libnccl (or librccl)",
        "",
        shown="the one that is loaded already, or found in the environment of Python or by "
        "the system's loader",
    )
    gpu_chunk_bytes: int = setting(
        "HOROVOD_GPU_CHUNK_SIZE",
        "bytes of each piece of a GPU tensor that goes through host memory, the same on all ranks",
        4 * MIB,
        minimum=4096,
    )
    gpu_pinned_bytes: int = setting(
        "HOROVOD_GPU_PINNED_SIZE",
        "limit for the host memory that each rank pins for GPU tensors, in bytes",
        64 * MIB,
        minimum=65536,
    )

    # -- Correctness

    deterministic: bool = setting(
        "HOROVOD_DETERMINISTIC",
        "1 makes reruns equal bit by bit, by composing and ordering batches the same way",
        False,
    )
    check_in_sync_steps: int = setting(
        "HOROVOD_CHECK_IN_SYNC_STEPS",
        "steps after which `DistributedOptimizer` compares a sample of the parameters between "
        "ranks; 0 means never",
        0,
        minimum=0,
    )
    stall_check_disable: bool = setting(
        "HOROVOD_STALL_CHECK_DISABLE",
        "1 turns the report off",
        False,
        flag="stall-check",
        key="stall_check.enabled",
        help="report ranks that have not submitted an operation",
        negated=True,
    )
    stall_check_time_s: float | None = setting(
        "HOROVOD_STALL_CHECK_TIME_SECONDS",
        "seconds until ranks that have not submitted an operation are reported; 0 means never",
        None,
        kind=float,
        minimum=0,
        shown="depends on the pace of the job",
        flag="stall-check-warning-time-seconds",
        key="stall_check.warning_time_seconds",
        help="seconds until missing ranks are reported",
        whole=True,
    )
    stall_shutdown_time_s: float = setting(
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS",
        "seconds until a stalled job fails with StalledError; 0 means never. A time below that of "
        "the report is ignored, with a warning",
        0.0,
        minimum=0,
        flag="stall-check-shutdown-time-seconds",
        key="stall_check.shutdown_time_seconds",
        help="seconds until a stalled job ends; 0 means never",
        whole=True,
    )
    deadlock_timeout_s: float = setting(
        "HOROVOD_DEADLOCK_TIMEOUT",
        "seconds until a deadlocked job, whose ranks wait for each other, fails with StalledError; "
        "0, or turning the report off, means never",
        60.0,
        minimum=0,
        flag="deadlock-timeout",
        key="stall_check.deadlock_timeout",
        help="seconds until a job ends whose ranks wait for each other; 0 means never",
        whole=True,
    )

    # -- Commits in files

    checkpoint_dir: str = setting(
        "HOROVOD_CHECKPOINT_DIR",
        "a path or URL that all hosts reach: rank 0 writes commits of elastic training there, and "
        "a restarted job continues from the newest one; see "
        "[elastic](elastic.md#when-all-workers-are-lost)",
        "",
        shown="none",
        flag="checkpoint-dir",
        key="checkpoint.directory",
        help="path or URL for commits, from which the next job continues",
    )
    checkpoint_every: int = setting(
        "HOROVOD_CHECKPOINT_EVERY",
        "one of this many commits is written",
        1,
        minimum=1,
        flag="checkpoint-every",
        key="checkpoint.every",
        help="write every N-th commit",
        needs="checkpoint-dir",
    )

    # -- Reports

    slow_worker: str = setting(
        "HOROVOD_SLOW_WORKER",
        "the reaction of `horovodrun` to a rank that makes the others wait: `report` names it and "
        "the time that a step would save without it; in an elastic job, `replace` starts another "
        "worker instead and `remove` continues without it; see "
        "[debugging](debugging.md#a-rank-is-slow) and [elastic](elastic.md#slow-workers)",
        "report",
        words=SLOW_WORKER,
        flag="slow-worker",
        key="stall_check.slow_worker",
        help="off, or what to do about a rank that makes the others wait: report it, or, in "
        "an elastic job, replace or remove it",
    )
    log: str = setting(
        "HOROVOD_LOG",
        "where rank 0 writes the values of `hvd.log`, separated by commas: `tensorboard:FOLDER`, "
        "`jsonl:FILE`, `mlflow`, `wandb` or `trackio`; see [logging](logging.md)",
        "",
        shown="nowhere",
        flag="log",
        key="logging.values",
        help="where rank 0 writes the values of hvd.log, separated by commas: tensorboard:FOLDER, "
        "jsonl:FILE, mlflow, wandb, trackio",
    )
    dashboard: int = setting(
        "HOROVOD_DASHBOARD",
        "a port of 127.0.0.1 on the host of the launcher (under torchrun, mpirun and srun: of rank "
        "0) for the live page of the job; 1 for any port, 0 for no page; see "
        "[dashboard](dashboard.md)",
        0,
        minimum=0,
        maximum=65535,
    )
    metrics_port: int | None = setting(
        "HOROVOD_METRICS_PORT",
        "a port there for metrics of the job, for Prometheus; 0 for any",
        None,
        kind=int,
        minimum=0,
        maximum=65535,
        shown="none",
    )
    watch: bool = setting(
        "HOROVOD_WATCH",
        "1 prints why steps are slow, and what to do",
        False,
    )
    timeline: str = setting(
        "HOROVOD_TIMELINE",
        "file for the timeline, written by rank 0; `DYNAMIC` waits for `hvd.start_timeline`",
        "",
        shown="none",
        flag="timeline-filename",
        key="timeline.filename",
        help="timeline of all ranks, a file on the host of rank 0; DYNAMIC waits for "
        "start_timeline",
    )
    timeline_mark_cycles: bool = setting(
        "HOROVOD_TIMELINE_MARK_CYCLES",
        "1 marks each batch in the timeline",
        False,
        flag="timeline-mark-cycles",
        key="timeline.mark_cycles",
        help="mark each answer of the coordinator in the timeline",
        needs="timeline-filename",
    )
    log_level: str = setting(
        "HOROVOD_LOG_LEVEL",
        f"lowest level that the ranks log: {', '.join(LOG_LEVELS)}",
        "warning",
        words=LOG_LEVELS,
        flag="log-level",
        key="logging.level",
        help="lowest level to log: TRACE, DEBUG, INFO, WARNING, ERROR or FATAL",
        capitals=True,
    )
    log_hide_time: bool = setting(
        "HOROVOD_LOG_HIDE_TIME",
        "1 omits the time from log lines",
        False,
        flag="log-with-timestamp",
        key="logging.with_timestamp",
        help="prefix log lines with the time",
        off="log-without-timestamp",
        aliases=(("no-log-hide-timestamp", "log-hide-timestamp"),),
        negated=True,
        hidden_key="logging.hide_timestamp",
    )

    # -- What the launcher tells each rank

    rank: int = _place("HOROVOD_RANK", "this process among all processes of the job", 0)
    size: int = _place("HOROVOD_SIZE", "the number of all processes of the job", 1)
    local_rank: int = _place("HOROVOD_LOCAL_RANK", "this process among those of its host", 0)
    local_size: int = _place("HOROVOD_LOCAL_SIZE", "the number of processes of its host", 1)
    cross_rank: int = _place(
        "HOROVOD_CROSS_RANK", "this host among those with a process of its local rank", 0
    )
    cross_size: int = _place(
        "HOROVOD_CROSS_SIZE", "the number of hosts with a process of its local rank", 1
    )
    worker_id: str = _place(
        "HOROVOD_WORKER_ID", "the identity of this process in its job; no later one has it", ""
    )
    elastic: bool = _place(
        "HOROVOD_ELASTIC",
        "1 for a worker of an elastic job: it joins the store and waits for its place there",
        False,
    )
    hostname: str = _place(
        "HOROVOD_HOSTNAME", "the name of this host as the user wrote it", "localhost"
    )
    rendezvous_addr: str = _place(
        "HOROVOD_GLOO_RENDEZVOUS_ADDR",
        "address of the job's store; without an address the job has one rank. The name is "
        "historical: Gloo is not used",
        "",
    )
    rendezvous_port: int = _place("HOROVOD_GLOO_RENDEZVOUS_PORT", "its port", 0)
    secret_file: str = _place(
        "HOROVOD_SECRET_FILE",
        "the file of mode 0600 that holds the job's secret; see [security](security.md)",
        "",
    )
    generation: int = _place(
        "HOROVOD_GENERATION",
        "of the job's membership; it changes when ranks come or go",
        0,
        minimum=0,
    )


_told = partial(Setting, status=Status.PLACE)

OTHERS: tuple[Setting, ...] = (
    _told(
        "HOROVOD_WORKER_SLOT",
        "which of the places for a worker it uses on its host; never changes",
        0,
        minimum=0,
    ),
    _told("HOROVOD_MIN_SIZE", "the fewest processes of the job", 1, minimum=1),
    _told("HOROVOD_MAX_SIZE", "the most processes of the job", None, kind=int, minimum=1),
    _told(
        "HOROVOD_ELASTIC_TIMEOUT",
        "seconds that a worker of an elastic job waits for its next place",
        600.0,
        minimum=0,
    ),
    _told(
        "HOROVOD_WORKER_TIMEOUT",
        "seconds of silence after which a worker of an elastic job is ended; see --worker-timeout",
        60.0,
        minimum=0,
    ),
    Setting(
        "HOROVOD_KEEP_REPORTS",
        "whether `horovodrun` keeps what it says at the end of a failed job, of the last 10, in "
        "`~/.horovod/reports`, for `horovodrun report-issue`",
        True,
    ),
    Setting(
        "HOROVOD_SPARK_START_TIMEOUT",
        "seconds within which all tasks of `horovod.spark.run` must start, and the ranks in them",
        600.0,
    ),
    Setting(
        "HOROVOD_SPARK_USE_LOCAL_RANK_GPU_INDEX",
        "anything but 0 lets estimators on Spark choose a GPU by local rank, and not by the "
        "address that Spark gave to the task",
        "0",
    ),
    _told(
        "HOROVOD_SPARK_DEVICES",
        "the GPUs that Spark gave to the task of this rank, separated by commas",
        "",
    ),
    Setting(
        "HOROVOD_GLOO_TIMEOUT_SECONDS",
        "the start timeout of a rank, if `HOROVOD_START_TIMEOUT` is not set",
        None,
        status=Status.DEPRECATED,
        kind=float,
        replacement="HOROVOD_START_TIMEOUT",
        flag="gloo-timeout-seconds",
        key="library_options.gloo_timeout_seconds",
        help="seconds to connect to a peer",
        whole=True,
    ),
)
"""Settings that no field of Config holds."""
