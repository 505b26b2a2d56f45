"""The settings that something acts on."""

from __future__ import annotations

from functools import partial

from horovod._settings.setting import Kind, Setting, Spelling, Status

MIB = 1024 * 1024
ALLREDUCE_ALGORITHMS = (
    "auto",
    "exchange",
    "direct",
    "ring",
    "doubling",
    "trees",
    "hierarchical",
)
CPU_OPERATIONS = ("native", "gloo", "mpi")
GPU_OPERATIONS = ("auto", "nccl", "staged")
SLOW_WORKER = ("off", "report", "replace", "remove")
LOG_LEVELS = ("trace", "debug", "info", "warning", "error", "fatal")

_flag = partial(Setting, kind=Kind.FLAG, default=False)
_place = partial(Setting, status=Status.PLACE)
_count = partial(Setting, kind=Kind.INTEGER, minimum=0)
_place_count = partial(_place, kind=Kind.INTEGER)

_JOB = (
    Setting(
        "HOROVOD_START_TIMEOUT",
        "seconds within which all ranks must start and connect",
        kind=Kind.NUMBER,
        default=30.0,
        flag="--start-timeout",
        field="start_timeout_s",
    ),
    Setting(
        "HOROVOD_GRACE_SECONDS",
        "seconds for ranks to end after Ctrl-C, SIGTERM or SIGHUP of the launcher",
        kind=Kind.NUMBER,
        default=30.0,
        flag="--grace",
        field="grace_s",
        minimum=0,
    ),
    Setting(
        "HOROVOD_THREAD_AFFINITY",
        "cores for the engine threads: one id per local rank, separated by commas",
        kind=Kind.INTEGERS,
        default=(),
        flag=Spelling("thread-affinity", "library_options.thread_affinity"),
        field="thread_affinity",
        minimum=0,
        shown="not bound",
    ),
)

_MEETING = (
    Setting(
        "HOROVOD_SECRET_KEY",
        "the job's secret as 64 hexadecimal digits, the same on all ranks, if the user has to "
        "provide one: `openssl rand -hex 32`; see [hosts](hosts.md)",
    ),
    Setting(
        "HOROVOD_RENDEZVOUS",
        "`host:port` at which rank 0 opens the job's store, if neither `horovodrun` nor the "
        "launcher provides one; needs a secret from the user; see [hosts](hosts.md)",
    ),
    Setting(
        "HOROVOD_GLOO_IFACE",
        "the network interface at which this rank listens for ranks of other hosts; the launcher "
        "sets it (`--network-interfaces`)",
        field="network_interface",
        shown="the one that reaches the store",
    ),
)

_SPEED = (
    _count(
        "HOROVOD_FUSION_THRESHOLD",
        "bytes of tensors that may travel in one batch (the flag takes MiB); 0 turns fusion off",
        default=64 * MIB,
        flag=Spelling(
            "fusion-threshold-mb",
            "params.fusion_threshold_mb",
            help="MiB of tensors that may travel in one batch; 0 turns fusion off",
            scale=MIB,
        ),
        field="fusion_threshold",
        shown="64 MiB",
    ),
    _flag(
        "HOROVOD_DISABLE_GROUP_FUSION",
        "1 keeps the tensors of a grouped operation out of batches with other tensors",
        field="disable_group_fusion",
    ),
    _count(
        "HOROVOD_CACHE_CAPACITY",
        "names whose negotiation is remembered; 0 turns the cache off",
        default=1024,
        flag=Spelling(
            "cache-capacity",
            "params.cache_capacity",
            help="names whose negotiation is remembered; 0 turns the cache off",
        ),
        field="cache_capacity",
    ),
    Setting(
        "HOROVOD_NUM_STREAMS",
        "TCP connections that carry data between two ranks of different hosts; the same on all "
        "ranks",
        kind=Kind.INTEGER,
        default=1,
        flag=Spelling(
            "num-streams",
            "library_options.num_streams",
            help="TCP connections for data between two ranks of different hosts",
        ),
        field="num_streams",
        minimum=1,
    ),
    _flag(
        "HOROVOD_GRADIENT_BUCKETS",
        "0 leaves gradients of `DistributedOptimizer` where autograd puts them; otherwise, on one "
        "host, they are in memory that all ranks share, and are reduced in buckets",
        default=True,
        field="gradient_buckets",
    ),
    Setting(
        "HOROVOD_ALLREDUCE_ALGORITHM",
        "the allreduce algorithm, for tests and experts; the same on all ranks: "
        f"{', '.join(ALLREDUCE_ALGORITHMS)}; auto chooses by operation, size and hosts",
        kind=Kind.WORD,
        default="auto",
        field="allreduce_algorithm",
        words=ALLREDUCE_ALGORITHMS,
    ),
    _flag(
        "HOROVOD_AUTOTUNE",
        "1 tunes settings by measurement while training",
        flag=Spelling(
            "autotune",
            "autotune.enabled",
            help="find the best fusion threshold in the first steps of training",
        ),
        field="autotune",
    ),
    Setting(
        "HOROVOD_AUTOTUNE_LOG",
        "CSV file that records each sample",
        flag=Spelling("autotune-log-file", "autotune.log_file", needs="autotune"),
        field="autotune_log",
        shown="none",
    ),
    _count(
        "HOROVOD_AUTOTUNE_WARMUP_SAMPLES",
        "samples to discard at the start",
        default=3,
        flag=Spelling("autotune-warmup-samples", "autotune.warmup_samples", needs="autotune"),
        field="autotune_warmup_samples",
    ),
    _count(
        "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE",
        "steps in one sample",
        default=10,
        flag=Spelling("autotune-steps-per-sample", "autotune.steps_per_sample", needs="autotune"),
        field="autotune_steps_per_sample",
        minimum=1,
    ),
    _count(
        "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES",
        "samples after which tuning ends",
        default=20,
        flag=Spelling(
            "autotune-bayes-opt-max-samples", "autotune.bayes_opt_max_samples", needs="autotune"
        ),
        field="autotune_max_samples",
        minimum=1,
    ),
)

_MPI = (
    Setting(
        "HOROVOD_CPU_OPERATIONS",
        "what moves the data: native is Horovod's own engine, and gloo means the same; mpi is an "
        "MPI library with the standard binary interface (libmpi_abi), whose mpirun starts the job",
        kind=Kind.WORD,
        default="native",
        field="cpu_operations",
        words=CPU_OPERATIONS,
        refusal="unset it, or set it to native or mpi: Intel oneCCL and others are not used",
    ),
    Setting(
        "HOROVOD_MPI_LIBRARY",
        "the file of libmpi_abi, if `HOROVOD_CPU_OPERATIONS` is mpi",
        field="mpi_library",
        shown="looked for beside mpirun, in the environment of Python, and by the system's loader",
    ),
    _flag(
        "HOROVOD_MPI_THREADS_DISABLE",
        "with `HOROVOD_CPU_OPERATIONS=mpi`, 1 initializes MPI for Horovod's own thread only: the "
        "program must not call MPI itself",
        flag=Spelling(
            "mpi-threads-disable",
            "library_options.mpi_threads_disable",
            help="initialize MPI for Horovod's own thread only: the program must not call MPI",
        ),
        field="mpi_threads_disable",
    ),
)

_GPU = (
    Setting(
        "HOROVOD_GPU_OPERATIONS",
        "what moves tensors on GPUs: auto uses NCCL wherever possible, and host memory elsewhere; "
        "nccl fails if NCCL cannot be used; staged always uses host memory",
        kind=Kind.WORD,
        default="auto",
        field="gpu_operations",
        words=GPU_OPERATIONS,
        refusal="unset it, or set it to auto, nccl or staged",
    ),
    Setting(
        "HOROVOD_CUDA_LIBRARY",
        "the file of the GPU driver, libcuda (or libamdhip64)",
        field="cuda_library",
        shown="the one that is loaded already, or what the system's loader finds",
    ),
    Setting(
        "HOROVOD_NCCL_LIBRARY",
        "the file of libnccl (or librccl)",
        field="nccl_library",
        shown="the one that is loaded already, or looked for in the environment of Python, and by "
        "the system's loader",
    ),
    _count(
        "HOROVOD_GPU_CHUNK_SIZE",
        "bytes of each piece of a GPU tensor that goes through host memory, the same on all ranks",
        default=4 * MIB,
        field="gpu_chunk_bytes",
        minimum=4096,
        shown="4 MiB",
    ),
    _count(
        "HOROVOD_GPU_PINNED_SIZE",
        "limit for the host memory that each rank pins for GPU tensors, in bytes",
        default=64 * MIB,
        field="gpu_pinned_bytes",
        minimum=65536,
        shown="64 MiB",
    ),
)

_CORRECTNESS = (
    _flag(
        "HOROVOD_DETERMINISTIC",
        "1 makes reruns equal bit by bit, by composing and ordering batches the same way",
        field="deterministic",
    ),
    _count(
        "HOROVOD_CHECK_IN_SYNC_STEPS",
        "steps after which `DistributedOptimizer` compares a sample of the parameters between "
        "ranks; 0 means never",
        default=0,
        field="check_in_sync_steps",
    ),
    _flag(
        "HOROVOD_STALL_CHECK_DISABLE",
        "1 turns the report off",
        flag=Spelling(
            "stall-check",
            "stall_check.enabled",
            help="report ranks that have not submitted an operation",
            negated=True,
        ),
    ),
    Setting(
        "HOROVOD_STALL_CHECK_TIME_SECONDS",
        "seconds until ranks that have not submitted an operation are reported; 0 means never",
        kind=Kind.NUMBER,
        default=None,
        flag=Spelling(
            "stall-check-warning-time-seconds",
            "stall_check.warning_time_seconds",
            help="seconds until missing ranks are reported",
            whole=True,
        ),
        minimum=0,
        shown="follows the pace of the job",
    ),
    Setting(
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS",
        "seconds until a stalled job fails with StalledError; 0 means never. A time below that of "
        "the report is ignored, with a warning",
        kind=Kind.NUMBER,
        default=0.0,
        flag=Spelling(
            "stall-check-shutdown-time-seconds",
            "stall_check.shutdown_time_seconds",
            help="seconds until a stalled job ends; 0 means never",
            whole=True,
        ),
        field="stall_shutdown_time_s",
        minimum=0,
    ),
    Setting(
        "HOROVOD_DEADLOCK_TIMEOUT",
        "seconds until a deadlocked job, whose ranks wait for each other, fails with StalledError; "
        "0, or turning the report off, means never",
        kind=Kind.NUMBER,
        default=60.0,
        flag=Spelling(
            "deadlock-timeout",
            "stall_check.deadlock_timeout",
            help="seconds until a job ends whose ranks wait for each other; 0 means never",
            whole=True,
        ),
        field="deadlock_timeout_s",
        minimum=0,
    ),
)

_CHECKPOINTS = (
    Setting(
        "HOROVOD_CHECKPOINT_DIR",
        "a path or URL that all hosts reach: there rank 0 writes commits of elastic training, and "
        "a job that is started again goes on from the newest one; see "
        "[elastic](elastic.md#when-all-workers-are-lost)",
        flag=Spelling(
            "checkpoint-dir",
            "checkpoint.directory",
            help="path or URL where commits are written, and from which the next job goes on",
        ),
        field="checkpoint_dir",
        shown="none",
    ),
    _count(
        "HOROVOD_CHECKPOINT_EVERY",
        "how many commits there are from one that is written to the next",
        default=1,
        flag=Spelling(
            "checkpoint-every",
            "checkpoint.every",
            help="write every N-th commit",
            needs="checkpoint-dir",
        ),
        field="checkpoint_every",
        minimum=1,
    ),
)

_REPORTS = (
    Setting(
        "HOROVOD_SLOW_WORKER",
        "what `horovodrun` does about a rank that makes the others wait: `report` says which one, "
        "and what a step would save without it; in an elastic job, `replace` starts another worker "
        "in its place and `remove` goes on without it; see "
        "[debugging](debugging.md#a-rank-is-slow) and [elastic](elastic.md#slow-workers)",
        kind=Kind.WORD,
        default="report",
        flag=Spelling(
            "slow-worker",
            "stall_check.slow_worker",
            help="off, or what to do about a rank that makes the others wait: report it, or, in "
            "an elastic job, replace or remove it",
        ),
        field="slow_worker",
        words=SLOW_WORKER,
    ),
    Setting(
        "HOROVOD_TIMELINE",
        "file for the timeline, written by rank 0; `DYNAMIC` waits for `hvd.start_timeline`",
        flag=Spelling(
            "timeline-filename",
            "timeline.filename",
            help="timeline of all ranks, a file on the host of rank 0; DYNAMIC waits for "
            "start_timeline",
        ),
        field="timeline",
        shown="none",
    ),
    _flag(
        "HOROVOD_TIMELINE_MARK_CYCLES",
        "1 marks each batch in the timeline",
        flag=Spelling(
            "timeline-mark-cycles",
            "timeline.mark_cycles",
            help="mark each answer of the coordinator in the timeline",
            needs="timeline-filename",
        ),
        field="timeline_mark_cycles",
    ),
    Setting(
        "HOROVOD_LOG_LEVEL",
        f"lowest level that the ranks log: {', '.join(LOG_LEVELS)}",
        kind=Kind.WORD,
        default="warning",
        flag=Spelling(
            "log-level",
            "logging.level",
            help="lowest level to log: TRACE, DEBUG, INFO, WARNING, ERROR or FATAL",
            capitals=True,
        ),
        field="log_level",
        words=LOG_LEVELS,
    ),
    _flag(
        "HOROVOD_LOG_HIDE_TIME",
        "1 omits the time from log lines",
        flag=Spelling(
            "log-with-timestamp",
            "logging.with_timestamp",
            help="prefix log lines with the time",
            off="log-without-timestamp",
            aliases=(("no-log-hide-timestamp", "log-hide-timestamp"),),
            negated=True,
            hidden_key="logging.hide_timestamp",
        ),
        field="log_hide_time",
    ),
)

_PLACES = (
    _place_count("HOROVOD_RANK", "this process among all processes of the job", default=0),
    _place_count("HOROVOD_SIZE", "the number of all processes of the job", default=1),
    _place_count("HOROVOD_LOCAL_RANK", "this process among those of its host", default=0),
    _place_count("HOROVOD_LOCAL_SIZE", "the number of processes of its host", default=1),
    _place_count(
        "HOROVOD_CROSS_RANK", "this host among those with a process of its local rank", default=0
    ),
    _place_count(
        "HOROVOD_CROSS_SIZE", "the number of hosts with a process of its local rank", default=1
    ),
    _place(
        "HOROVOD_WORKER_ID",
        "the identity of this process in its job; no later one has it",
        field="worker_id",
    ),
    _place(
        "HOROVOD_ELASTIC",
        "1 for a worker of an elastic job: it joins the store and awaits its place there",
        kind=Kind.FLAG,
        default=False,
        field="elastic",
    ),
    _place_count(
        "HOROVOD_WORKER_SLOT",
        "which of the places for a worker it uses on its host; never changes",
        default=0,
        minimum=0,
    ),
    _place_count("HOROVOD_MIN_SIZE", "the fewest processes of the job", default=1, minimum=1),
    _place_count("HOROVOD_MAX_SIZE", "the most processes of the job", default=None, minimum=1),
    _place(
        "HOROVOD_ELASTIC_TIMEOUT",
        "seconds that a worker of an elastic job waits for its next place",
        kind=Kind.NUMBER,
        default=600.0,
        minimum=0,
    ),
    _place(
        "HOROVOD_WORKER_TIMEOUT",
        "seconds of silence after which a worker of an elastic job is ended; see --worker-timeout",
        kind=Kind.NUMBER,
        default=60.0,
        minimum=0,
    ),
    _place("HOROVOD_HOSTNAME", "the name of this host as the user wrote it", field="hostname"),
    _place(
        "HOROVOD_GLOO_RENDEZVOUS_ADDR",
        "where the job's store listens; without an address the job has one rank. The name is old: "
        "there is no Gloo in it",
        field="rendezvous_addr",
    ),
    _place_count(
        "HOROVOD_GLOO_RENDEZVOUS_PORT",
        "its port",
        default=0,
        field="rendezvous_port",
    ),
    _place(
        "HOROVOD_SECRET_FILE",
        "the file of mode 0600 that holds the job's secret; see [security](security.md)",
        field="secret_file",
    ),
    _place_count(
        "HOROVOD_GENERATION",
        "of the job's membership; it changes when ranks come or go",
        default=0,
        field="generation",
        minimum=0,
    ),
)

_DEPRECATED = (
    Setting(
        "HOROVOD_GLOO_TIMEOUT_SECONDS",
        "the start timeout of a rank, if `HOROVOD_START_TIMEOUT` is not set",
        status=Status.DEPRECATED,
        kind=Kind.NUMBER,
        default=None,
        flag=Spelling(
            "gloo-timeout-seconds",
            "library_options.gloo_timeout_seconds",
            help="seconds to connect to a peer",
            whole=True,
        ),
        replacement="HOROVOD_START_TIMEOUT",
    ),
)

_SPARK = (
    Setting(
        "HOROVOD_SPARK_START_TIMEOUT",
        "seconds within which all tasks of `horovod.spark.run` must start, and the ranks in them",
        kind=Kind.NUMBER,
        default=600.0,
    ),
    Setting(
        "HOROVOD_SPARK_USE_LOCAL_RANK_GPU_INDEX",
        "anything but 0 lets estimators on Spark choose a GPU by local rank, and not by the "
        "address that Spark gave to the task",
        default="0",
    ),
    _place(
        "HOROVOD_SPARK_DEVICES",
        "the GPUs that Spark gave to the task of this rank, separated by commas",
    ),
)

HONORED: tuple[Setting, ...] = (
    *_JOB,
    *_MEETING,
    *_SPEED,
    *_MPI,
    *_GPU,
    *_CORRECTNESS,
    *_CHECKPOINTS,
    *_REPORTS,
    *_SPARK,
    *_PLACES,
    *_DEPRECATED,
)
