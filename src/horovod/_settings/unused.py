"""The settings that old scripts and images set, and that nothing acts on, with the reason."""

from __future__ import annotations

from functools import partial

from horovod._settings.setting import Setting, Status

_unused = partial(Setting, status=Status.WITHOUT_EFFECT)

_OF_SPARK = "ranks in Spark have the paths of their task"
_CHOSEN = "the engine chooses by operation, size and hosts"

# Old scripts set gloo or mpi, and so does our launcher for scripts that look at it. A word that
# names a library which is not there is refused: the job would not run as it was meant to.
_OWN_ENGINE = ("native", "gloo", "mpi")
_REFUSAL = "unset it, or set it to native: there is one engine of Horovod's own in every build"

_RUN_TIME = (
    _unused(
        "HOROVOD_DYNAMIC_PROCESS_SETS",
        "process sets may be added and removed at any time",
        default=False,
    ),
    _unused(
        "HOROVOD_CONTROLLER",
        "native, gloo and mpi all mean the engine's own; any other word is refused",
        default="native",
        words=_OWN_ENGINE,
        refusal=_REFUSAL,
    ),
    _unused(
        "HOROVOD_CYCLE_TIME",
        "there is no cycle: an operation starts when it is ready",
        flag="cycle-time-ms",
        key="params.cycle_time_ms",
        kind=float,
    ),
    _unused(
        "HOROVOD_HIERARCHICAL_ALLREDUCE",
        _CHOSEN,
        flag="hierarchical-allreduce",
        key="params.hierarchical_allreduce",
        kind=bool,
    ),
    _unused(
        "HOROVOD_HIERARCHICAL_ALLGATHER",
        _CHOSEN,
        flag="hierarchical-allgather",
        key="params.hierarchical_allgather",
        kind=bool,
    ),
    _unused(
        "HOROVOD_TORUS_ALLREDUCE",
        _CHOSEN,
        flag="torus-allreduce",
        key="params.torus_allreduce",
        kind=bool,
    ),
    _unused(
        "HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE",
        "the tuner has no such parameter",
        flag="autotune-gaussian-process-noise",
        key="autotune.gaussian_process_noise",
        needs="autotune",
        kind=float,
        maximum=1,
    ),
    _unused("HOROVOD_ADASUM_MPI_CHUNK_SIZE", "MPI cuts messages as it likes"),
    _unused(
        "HOROVOD_NUM_NCCL_STREAMS",
        "each process set has one communicator of NCCL with its own stream",
        flag="num-nccl-streams",
        key="library_options.num_nccl_streams",
        kind=int,
    ),
    _unused("HOROVOD_BATCH_D2D_MEMCOPIES", "nothing is packed: fused tensors are not moved"),
    _unused(
        "HOROVOD_ENABLE_ASYNC_COMPLETION",
        "it is always on: only the stream that needs the result waits for a GPU",
    ),
    _unused(
        "HOROVOD_ENABLE_XLA_OPS",
        "XLA cannot compile operations that wait for other ranks; use `jit_compile=False`",
    ),
    _unused("HOROVOD_CCL_CACHE", "Intel oneCCL is not used"),
    _unused("HOROVOD_DISABLE_NVTX_RANGES", "no NVTX ranges are written"),
    _unused("HOROVOD_SPARK_PYTHONPATH", _OF_SPARK),
    _unused("HOROVOD_SPARK_WORK_DIR", _OF_SPARK),
    _unused(
        "_HOROVOD_SECRET_KEY", "the environment contains no secret; see [security](security.md)"
    ),
)

_BUILD_NAMES = """
HOROVOD_GPU HOROVOD_GPU_ALLREDUCE HOROVOD_GPU_ALLGATHER HOROVOD_GPU_BROADCAST
HOROVOD_GPU_ALLTOALL HOROVOD_GPU_REDUCESCATTER HOROVOD_ALLOW_MIXED_GPU_IMPL
HOROVOD_WITH_TENSORFLOW HOROVOD_WITHOUT_TENSORFLOW HOROVOD_WITH_PYTORCH HOROVOD_WITHOUT_PYTORCH
HOROVOD_WITH_MXNET HOROVOD_WITHOUT_MXNET HOROVOD_WITH_MPI HOROVOD_WITHOUT_MPI
HOROVOD_WITH_GLOO HOROVOD_WITHOUT_GLOO HOROVOD_WITH_NVTX HOROVOD_WITHOUT_NVTX
HOROVOD_NCCL_HOME HOROVOD_NCCL_INCLUDE HOROVOD_NCCL_LIB HOROVOD_NCCL_LINK HOROVOD_CUDA_HOME
HOROVOD_ROCM_HOME HOROVOD_NVTX_INCLUDE HOROVOD_CMAKE HOROVOD_DEBUG HOROVOD_BUILD_ARCH_FLAGS
HOROVOD_BUILD_CUDA_CC_LIST HOROVOD_SKIP_COMPILE HOROVOD_LOCAL_VERSION
"""

UNUSED: tuple[Setting, ...] = (
    *_RUN_TIME,
    *(Setting(name, "", status=Status.BUILD) for name in _BUILD_NAMES.split()),
)
