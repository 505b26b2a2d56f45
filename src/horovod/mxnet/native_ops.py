"""The library that pushes collectives into MXNet's engine, and what it knows of those in flight.

``libhorovod_mxnet.so`` is written in C++ against the C functions of MXNet 1.9.1, which it finds in
the library that Python has loaded. It looks the job up when MXNet runs an operation, by the number
of its context (decision 0033).
"""

from __future__ import annotations

import ctypes
import logging
from pathlib import Path
from typing import TYPE_CHECKING

import mxnet as mx

from horovod._rank import context
from horovod._train import process_set_table
from horovod._train.kernel_jobs import follow_jobs
from horovod.mxnet.errors import FailedOperationError

if TYPE_CHECKING:
    from horovod._rank.group import Group
    from horovod._settings.config import Config

_LIBRARY = Path(__file__).resolve().parents[1] / "libhorovod_mxnet.so"
_RUNS_WHERE_IT_IS_PUSHED = 2
# Who waits lets the handlers of signals run so often, for Ctrl-C.
_SIGNAL_CHECK_MS = 200

_logger = logging.getLogger(__name__)

# Whether the program has seen the failure of this job.
_was_told = False


class Request(ctypes.Structure):
    """The request structure of ``native/bindings/mxnet/exports.cc``."""

    _fields_ = (
        ("kind", ctypes.c_int32),
        ("grouped", ctypes.c_int32),
        ("name", ctypes.c_char_p),
        ("job", ctypes.c_int64),
        ("process_set", ctypes.c_int64),
        ("call_site", ctypes.c_char_p),
        ("reduce_op", ctypes.c_int32),
        ("prescale", ctypes.c_double),
        ("postscale", ctypes.c_double),
        ("root", ctypes.c_int32),
        ("priority", ctypes.c_int32),
        ("arrays", ctypes.POINTER(ctypes.c_void_p)),
        ("dtypes", ctypes.POINTER(ctypes.c_int32)),
        ("num_arrays", ctypes.c_int32),
        ("quantization", ctypes.c_int32),
    )


def _load() -> ctypes.CDLL:
    """The library, which knows MXNet's functions and follows the jobs.

    Raises:
        ImportError: it does not work with this MXNet; the message says why.
    """
    if not _LIBRARY.exists():
        raise ImportError(
            f"{_LIBRARY} is missing: this Horovod was built without it. Install a wheel, or build "
            "with -DHVD_BUILD_BINDINGS=ON (pip install .)"
        )
    library = ctypes.CDLL(str(_LIBRARY))
    library.horovod_mxnet_look_up.argtypes = (ctypes.c_char_p,)
    library.horovod_mxnet_look_up.restype = ctypes.c_char_p
    library.horovod_mxnet_push.argtypes = (ctypes.POINTER(Request),)
    library.horovod_mxnet_push.restype = ctypes.c_char_p
    library.horovod_mxnet_begin_probe.argtypes = (ctypes.c_void_p,)
    library.horovod_mxnet_begin_probe.restype = ctypes.c_void_p
    library.horovod_mxnet_end_probe.argtypes = (ctypes.c_void_p, ctypes.c_int)
    library.horovod_mxnet_drain.argtypes = (ctypes.c_int,)
    library.horovod_mxnet_failure.restype = ctypes.c_char_p
    problem = library.horovod_mxnet_look_up(mx.libinfo.find_lib_path()[0].encode())
    if problem:
        raise ImportError(f"horovod.mxnet does not work with this MXNet: {problem.decode()}")
    if mismatch := follow_jobs(library):
        raise ImportError(f"horovod.mxnet cannot use {_LIBRARY}: {mismatch}")
    return library


def push(request: Request) -> None:
    """Starts a collective in place, as an operation of MXNet's engine.

    Raises:
        FailedOperationError: the job is over already, or MXNet refuses the operation.
    """
    if _library.horovod_mxnet_is_over():
        raise failure()
    refusal = _library.horovod_mxnet_push(ctypes.byref(request))
    if refusal:
        raise FailedOperationError(refusal.decode())


def is_sound(array: mx.nd.NDArray) -> bool:
    """Waits for an array; whether it holds values and not an error, which stays where it is."""
    return bool(_probe(array))


def _probe(array: mx.nd.NDArray) -> int:
    begun = _library.horovod_mxnet_begin_probe(array.handle)
    while True:
        result: int = _library.horovod_mxnet_end_probe(begun, _SIGNAL_CHECK_MS)
        if result >= 0:
            return result


def may_fail() -> bool:
    """Whether an operation is in flight, or has failed in this job."""
    return bool(is_in_flight() or _library.horovod_mxnet_num_failures())


def is_in_flight() -> bool:
    """Whether an operation has not ended yet."""
    return bool(_library.horovod_mxnet_in_flight())


def drain() -> None:
    """Waits until no operation is in flight, whether they succeed or not."""
    while not _library.horovod_mxnet_drain(_SIGNAL_CHECK_MS):
        pass


def check_all() -> None:
    """Waits until no operation is in flight.

    Raises:
        FailedOperationError: one has failed in this job.
    """
    drain()
    if _library.horovod_mxnet_num_failures():
        raise failure()


def failure() -> FailedOperationError:
    """The error of this job's operations: of the one that ended the job, or else of the last."""
    global _was_told
    _was_told = True
    return FailedOperationError(_text_of_failure() or "an operation of MXNet has failed")


def forget() -> None:
    """Forgets the failures of this job."""
    _library.horovod_mxnet_forget()


def tell_what_nobody_heard() -> None:
    """Logs a failure if nobody has waited for what depends on it."""
    text = _text_of_failure()
    if text and not _was_told:
        _logger.error("a collective failed, and nobody waited for its result: %s", text)


def _text_of_failure() -> str:
    text: bytes | None = _library.horovod_mxnet_failure()
    return text.decode() if text else ""


class _Failures:
    """Keeps failures with their job, and operations with their process set."""

    def begun(self, config: Config, group: Group, number: int) -> None:
        global _was_told
        tell_what_nobody_heard()
        _was_told = False
        forget()

    def ended(self, group: Group) -> None:
        """Do nothing: what is in flight ends with the job, and fails."""

    def added(self, world: Group, number: int, group: Group) -> None:
        """Nothing is to be done."""

    def removed(self, world: Group, number: int) -> None:
        drain()


_library = _load()
context.listen(_Failures())
process_set_table.listen(_Failures())
_probed = mx.nd.zeros(1)  # an array must outlive the use of its handle
IS_NAIVE = _probe(_probed) == _RUNS_WHERE_IT_IS_PUSHED
"""Whether MXNet runs operations where they are called (``MXNET_ENGINE_TYPE=NaiveEngine``)."""
