"""The loop around a training function, which knows how TensorFlow reports the loss of a rank."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

import tensorflow as tf

from horovod._train.elastic import run as run_of_any

if TYPE_CHECKING:
    from collections.abc import Callable

    from horovod._train.elastic.state import State

P = ParamSpec("P")
T = TypeVar("T")
StateT = TypeVar("StateT", bound="State")

# Of an operation that failed, of those that TensorFlow ended with it, and of what it made of both.
engine_errors = partial(
    run_of_any.engine_errors,
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
    return run_of_any.run_fn(func, run_of_any.rejoin, engine_errors)
