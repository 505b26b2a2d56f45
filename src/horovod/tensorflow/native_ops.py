"""The operations that ``libhorovod_tensorflow.so`` registers with TensorFlow, and their jobs.

The library is written in C++ against TensorFlow's C interface. It looks a job up when an operation
runs, by the number of its context (decision 0033), so a graph may be built before ``hvd.init()``
and outlive a job.
"""

from __future__ import annotations

import ctypes
import functools
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tensorflow as tf
from tensorflow.python.framework import auto_control_deps

from horovod._rank import context
from horovod._train.kernel_jobs import follow_jobs

if TYPE_CHECKING:
    from horovod._rank.group import Group
    from horovod._settings.config import Config

_logger = logging.getLogger(__name__)

_LIBRARY = Path(__file__).resolve().parents[1] / "libhorovod_tensorflow.so"

COLLECTIVES = (
    "HorovodAllreduce",
    "HorovodGroupedAllreduce",
    "HorovodFeedbackAllreduce",
    "HorovodAllgather",
    "HorovodGroupedAllgather",
    "HorovodBroadcast",
    "HorovodGroupedBroadcast",
    "HorovodAlltoall",
    "HorovodReducescatter",
    "HorovodGroupedReducescatter",
)
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
    return ops, library


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


class _TellOfGpus:
    """Looks for GPUs when a job begins."""

    def begun(self, config: Config, group: Group, number: int) -> None:
        if config.rank == 0 and config.size > 1:
            tell_of_gpus()

    def ended(self, group: Group) -> None:
        """Nothing is to be done."""


ops, _library = _load()
_run_in_any_order()
if mismatch := follow_jobs(_library):
    raise ImportError(f"horovod.tensorflow cannot use {_LIBRARY}: {mismatch}")
context.listen(_TellOfGpus())
