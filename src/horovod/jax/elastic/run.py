"""A training function that is called again after every change of the job.

Example:
    >>> state = hvd.elastic.JaxState(params=params, opt_state=tx.init(params), epoch=0)
    >>> @hvd.elastic.run
    ... def train(state):
    ...     for state.epoch in range(state.epoch, epochs):
    ...         state.params, state.opt_state = train_one_epoch(state.params, state.opt_state)
    ...         state.commit()
    >>> train(state)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

import jax

from horovod._rank import context
from horovod._train.elastic.run import run_fn
from horovod._train.elastic.state import State
from horovod.jax.errors import in_our_words

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["rejoin", "run"]

P = ParamSpec("P")
T = TypeVar("T")
StateT = TypeVar("StateT", bound=State)


def run(func: Callable[Concatenate[StateT, P], T]) -> Callable[Concatenate[StateT, P], T]:
    """Decorates a training function, which is called again after every change of the job.

    Each call begins when all ranks have the same state. A rank that was lost sends all others back
    to their last commit. Jitted functions are traced again after a change, for the new size.

    Args:
        func: ``func(state, *args, **kwargs)``; the state is a ``hvd.elastic.State``.

    Returns:
        A function with the same arguments, which returns what the last call of ``func`` does.
    """
    return run_fn(func, rejoin, in_our_words)


def rejoin() -> None:
    """Leaves the job and joins its next generation; jitted functions are traced again then."""
    context.shutdown()
    context.init()
    jax.clear_caches()
