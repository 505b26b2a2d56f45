"""MXNet's waits after a collective has failed: they raise, each time.

MXNet raises an error at one wait only and forgets it then, also for the arrays that were to be
computed from the failed one: they hold whatever was in their memory. So ``asnumpy``,
``wait_to_read`` and ``waitall`` first ask whether an array holds an error, which leaves it there.
"""

from __future__ import annotations

import atexit
import functools
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import mxnet as mx

from horovod.mxnet import native_ops

if TYPE_CHECKING:
    from collections.abc import Callable


def check(array: mx.nd.NDArray) -> None:
    """Waits for an array.

    Raises:
        FailedOperationError: it depends on a collective that has failed in this job.
    """
    if native_ops.may_fail() and not native_ops.is_sound(array):
        raise native_ops.failure()


def forget_errors() -> None:
    """Lets all arrays be used again, with the values that they have; waits for all operations."""
    with suppress(mx.base.MXNetError):
        _waitall()
    native_ops.forget()


def _end() -> None:
    """Before MXNet ends with the process: it would report what the program has seen already."""
    native_ops.tell_what_nobody_heard()
    if not native_ops.is_in_flight():
        forget_errors()


def _checking(wait: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @functools.wraps(wait)
    def checked(self: Any) -> Any:
        check(self)
        return wait(self)

    return checked


@functools.wraps(mx.nd.waitall)
def _checked_waitall() -> None:
    native_ops.check_all()
    _waitall()


_waitall = mx.nd.waitall
atexit.register(_end)  # runs behind that of the job, which ends all that is in flight
if not native_ops.IS_NAIVE:
    mx.nd.NDArray.asnumpy = _checking(mx.nd.NDArray.asnumpy)
    mx.nd.NDArray.wait_to_read = _checking(mx.nd.NDArray.wait_to_read)
    for module in (mx.nd, mx.nd.ndarray, mx.npx):
        module.waitall = _checked_waitall
