"""The operations that ``libhorovod_tensorflow.so`` registers with TensorFlow, and their jobs.

The library is written in C++ against TensorFlow's C interface. It looks a job up when an operation
runs, by the number of its context (decision 0033), so a graph may be built before ``hvd.init()``
and outlive a job.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tensorflow as tf
from tensorflow.python.framework import auto_control_deps

from horovod import _native, context
from horovod.train import process_set_table

if TYPE_CHECKING:
    from horovod.config import Config
    from horovod.group import Group

_logger = logging.getLogger(__name__)

_LIBRARY = Path(__file__).resolve().parents[1] / "libhorovod_tensorflow.so"

COLLECTIVES = (
    "HorovodAllreduce",
    "HorovodGroupedAllreduce",
    "HorovodAllgather",
    "HorovodGroupedAllgather",
    "HorovodBroadcast",
    "HorovodGroupedBroadcast",
    "HorovodAlltoall",
    "HorovodReducescatter",
    "HorovodGroupedReducescatter",
)
# The number that the attribute ``job`` of an operation has by default.
DEFAULT_JOB = 0
_NUMBERS = (
    "HorovodRank",
    "HorovodLocalRank",
    "HorovodSize",
    "HorovodLocalSize",
    "HorovodProcessSetIncluded",
)


def _load() -> tuple[Any, ctypes.CDLL]:
    """The Python functions of the operations, and the library itself.

    Raises:
        ImportError: it does not work with this TensorFlow; the message says why.
    """
    if not _LIBRARY.exists():
        raise ImportError(
            f"{_LIBRARY} is missing: this Horovod was built without its TensorFlow operations. "
            "Install a wheel, or build with -DHVD_BUILD_BINDINGS=ON (pip install .)"
        )
    try:
        ops = tf.load_op_library(str(_LIBRARY))
    except tf.errors.OpError as error:
        raise ImportError(
            f"horovod.tensorflow cannot load its operations into TensorFlow {tf.__version__}: "
            f"{error.message}"
        ) from None
    library = ctypes.CDLL(str(_LIBRARY))
    library.horovod_tensorflow_problem.restype = ctypes.c_char_p
    problem = library.horovod_tensorflow_problem().decode()
    if problem:
        raise ImportError(
            f"horovod.tensorflow does not work with TensorFlow {tf.__version__}: {problem}. "
            "Install a newer TensorFlow 2; this was tried with 2.13 to 2.21"
        )
    _declare(library)
    mismatch = library.horovod_kernels_mismatch(_native.c_interface())
    if mismatch:
        raise ImportError(f"horovod.tensorflow cannot use {_LIBRARY}: {mismatch.decode()}")
    return ops, library


def _declare(library: ctypes.CDLL) -> None:
    """The signatures of the functions in ``native/bindings/kernels/exports.cc``."""
    library.horovod_kernels_mismatch.argtypes = (ctypes.c_void_p,)
    library.horovod_kernels_mismatch.restype = ctypes.c_char_p
    library.horovod_kernels_begin_job.argtypes = (
        ctypes.c_int64,
        ctypes.c_void_p,
        ctypes.c_void_p,
        *(ctypes.c_int,) * 3,
    )
    library.horovod_kernels_end_job.argtypes = (ctypes.c_int64,)
    library.horovod_kernels_set_process_set.argtypes = (
        ctypes.c_int64,
        ctypes.c_int64,
        ctypes.c_uint32,
        ctypes.POINTER(ctypes.c_int),
        ctypes.c_int,
        ctypes.c_int,
    )
    library.horovod_kernels_forget_process_set.argtypes = (ctypes.c_int64, ctypes.c_int64)


def _run_in_any_order() -> None:
    """Keeps tf.function from running stateful operations in the order of the program.

    Collectives match by name, so they may run at once and in any order; they must run even if their
    result is not used, as other ranks wait for them. A barrier and a join stay in their order.

    Raises:
        ImportError: this TensorFlow has no such list.
    """
    for name, ops in (
        ("MUST_RUN_ORDER_INSENSITIVE_STATEFUL_OPS", COLLECTIVES),
        ("SKIPPED_ORDER_INSENSITIVE_STATEFUL_OPS", _NUMBERS),
    ):
        known = getattr(auto_control_deps, name, None)
        if known is None:
            raise ImportError(
                f"horovod.tensorflow does not work with TensorFlow {tf.__version__}, which would "
                f"run collectives one after the other: it has no {name}. Report this, and install "
                "another TensorFlow 2 until then"
            )
        setattr(auto_control_deps, name, frozenset(known) | frozenset(ops))


@functools.cache
def tell_of_gpus() -> None:
    """Warns, once in a process, if TensorFlow computes on GPUs: its tensors are copied."""
    count = len(tf.config.list_physical_devices("GPU"))
    if count:
        gpus = "1 GPU" if count == 1 else f"{count} GPUs"
        _logger.warning(
            "TensorFlow finds %s, but Horovod's operations are on the CPU there: TensorFlow copies "
            "what they take to host memory, and their results back. Tensors of PyTorch stay on "
            "their GPUs (horovod.torch)",
            gpus,
        )


class _Jobs:
    """Tells the library of the jobs of this process, by the numbers of their contexts.

    The number 0 is that of the default context. If that one has no job, but just one other context
    does, 0 means that job too, as all of Horovod's interface does then: a graph that was built
    before belongs to it. While several others have jobs, operations of number 0 fail as before
    ``hvd.init()``: any other answer would be that of another rank.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._jobs: dict[Group, tuple[int, Config]] = {}
        self._default: Group | None = None
        os.register_at_fork(after_in_child=self._forget)

    def begun(self, config: Config, group: Group, number: int) -> None:
        self._jobs[group] = number, config
        if config.rank == 0 and config.size > 1:
            tell_of_gpus()
        if number != DEFAULT_JOB:
            self._begin(number, group)
        self._follow()

    def ended(self, group: Group) -> None:
        number, _ = self._jobs.pop(group, (DEFAULT_JOB, None))
        if number != DEFAULT_JOB:
            self._library.horovod_kernels_end_job(number)
        self._follow()

    def added(self, world: Group, number: int, group: Group) -> None:
        for job in self._numbers_of(world):
            self._set(job, number, group)

    def removed(self, world: Group, number: int) -> None:
        for job in self._numbers_of(world):
            self._library.horovod_kernels_forget_process_set(job, number)

    def _forget(self) -> None:
        """In the child of a fork: the jobs are the parent's."""
        self._default = None
        self._jobs.clear()

    def _follow(self) -> None:
        """Lets 0 mean the job that it has to mean now."""
        own = [group for group, (number, _) in self._jobs.items() if number == DEFAULT_JOB]
        meant = own or (list(self._jobs) if len(self._jobs) == 1 else [])
        default = meant[0] if meant else None
        if default is self._default:
            return
        self._default = default
        if default is None:
            self._library.horovod_kernels_end_job(DEFAULT_JOB)
        else:
            self._begin(DEFAULT_JOB, default)

    def _begin(self, job: int, world: Group) -> None:
        _, config = self._jobs[world]
        self._library.horovod_kernels_begin_job(
            job,
            _native.c_interface(),
            world.engine.c_reference(),
            config.rank,
            config.local_rank,
            config.local_size,
        )
        self._set(job, 0, world)
        process_set_table.table_of(world).tell(self, world)

    def _set(self, job: int, number: int, group: Group) -> None:
        ranks = (ctypes.c_int * group.size)(*group.ranks)
        set_rank = group.rank if group.is_member else -1
        self._library.horovod_kernels_set_process_set(
            job, number, group.process_set_id, ranks, group.size, set_rank
        )

    def _numbers_of(self, world: Group) -> set[int]:
        """The numbers under which the library knows a job."""
        numbers = {self._jobs[world][0]} - {DEFAULT_JOB} if world in self._jobs else set()
        return numbers | ({DEFAULT_JOB} if world is self._default else set())


ops, _library = _load()
_run_in_any_order()
_jobs = _Jobs(_library)
process_set_table.listen(_jobs)
context.listen(_jobs)
