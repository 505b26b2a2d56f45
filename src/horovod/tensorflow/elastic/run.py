"""The loop around a training function, which knows how TensorFlow reports the loss of a rank."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

import tensorflow as tf

from horovod._rank import context
from horovod._train.elastic.run import error_of_engine, is_recoverable, run_fn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from horovod._train.elastic.state import State

P = ParamSpec("P")
T = TypeVar("T")
StateT = TypeVar("StateT", bound="State")

# Of an operation that failed, of those that TensorFlow ended with it, and of what it made of both.
_OF_OPERATIONS = (
    tf.errors.UnknownError,
    tf.errors.CancelledError,
    tf.errors.AbortedError,
    tf.errors.InternalError,
)


def run(func: Callable[Concatenate[StateT, P], T]) -> Callable[Concatenate[StateT, P], T]:
    """Decorates a training function, which is called again after every change of the job.

    Each call begins when all ranks have the same state. A rank that was lost sends all others back
    to their last commit; members that come or leave orderly cost nothing that was trained. Graphs,
    sessions and compiled functions outlive the changes. Errors of the program are raised as they
    are.

    Args:
        func: ``func(state, *args, **kwargs)``; the state is a ``hvd.elastic.State``.

    Returns:
        A function with the same arguments, which returns what the last call of ``func`` does.
    """
    return run_fn(func, _reset, engine_errors)


@contextmanager
def engine_errors() -> Iterator[None]:
    """Inside the block, an operation that failed with the job raises what the engine says.

    Everything else that TensorFlow raises stays as it is.

    Raises:
        HorovodInternalError: of the engine, for example PeerLostError.
    """
    try:
        yield
    except _OF_OPERATIONS as error:
        cause = error_of_engine(str(error))
        if cause is None or not is_recoverable(cause):
            raise
        raise cause from error


def _reset() -> None:
    context.shutdown()
    context.init()
