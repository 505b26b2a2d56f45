"""Elastic training with MXNet: a training function that goes on when ranks come or go.

Example:
    >>> state = hvd.elastic.MXNetState(net, trainer, epoch=0)
    >>> @hvd.elastic.run
    ... def train(state):
    ...     for state.epoch in range(state.epoch, epochs):
    ...         train_one_epoch(state)
    ...         state.commit()
    >>> train(state)
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import mxnet as mx
import numpy as np

from horovod._rank import context
from horovod._rank.context import generation
from horovod._train.elastic.handlers import SavingHandler, StateHandler
from horovod._train.elastic.run import engine_errors, rejoin, run_fn
from horovod._train.elastic.state import ObjectState, State
from horovod._train.object_functions import broadcast_object
from horovod.mxnet.state import broadcast_parameters
from horovod.mxnet.waits import forget_errors

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["MXNetState", "ObjectState", "State", "generation", "run"]

P = ParamSpec("P")
T = TypeVar("T")
StateT = TypeVar("StateT", bound=State)


class MXNetState(ObjectState):
    """The state of a training program with gluon.

    Args:
        model: a gluon Block, or None.
        trainer: a gluon Trainer, or None.
        kwargs: further attributes and their first values, the same names on all ranks.

    Raises:
        UsageError: an attribute would hide one of the state itself.
    """

    def __init__(self, model: Any = None, trainer: Any = None, **kwargs: Any) -> None:
        super().__init__(broadcast_object, context.rank, **kwargs, model=model, trainer=trainer)

    def restore(self) -> None:
        forget_errors()
        super().restore()

    def _handler_of(self, value: Any) -> StateHandler | None:
        if isinstance(value, mx.gluon.Block):
            return _BlockHandler(value)
        if isinstance(value, mx.gluon.Trainer):
            return _TrainerHandler(value)
        return super()._handler_of(value)


class _BlockHandler(SavingHandler):
    """Keeps the parameters of a gluon Block in host memory; all must have their values."""

    def save(self) -> None:
        self._saved = {
            name: parameter.data().asnumpy()
            for name, parameter in self.value.collect_params().items()
        }

    def restore(self) -> None:
        parameters = self.value.collect_params()
        for name, array in self._saved.items():
            parameters[name].set_data(mx.nd.array(array, dtype=array.dtype))
        mx.nd.waitall()

    def sync(self) -> None:
        broadcast_parameters(self.value.collect_params(), self.root, "elastic.")
        mx.nd.waitall()


class _TrainerHandler(SavingHandler):
    """Keeps the state of a gluon Trainer's optimizer, as arrays.

    The updater's own ``get_states`` makes a pickle, which no file of a commit may hold.
    """

    def save(self) -> None:
        self._saved = self._states()

    def restore(self) -> None:
        self._set(self._saved)

    def sync(self) -> None:
        self._set(broadcast_object(self._states(), self.root, "elastic.trainer"))

    def _states(self) -> tuple[dict[Any, Any], dict[Any, int], int]:
        optimizer = self.value._optimizer
        states = {index: _host(state) for index, state in self.value._updaters[0].states.items()}
        return states, dict(optimizer._index_update_count), optimizer.num_update

    def _set(self, kept: tuple[dict[Any, Any], dict[Any, int], int]) -> None:
        states, counts, number = kept
        optimizer, updater = self.value._optimizer, self.value._updaters[0]
        updater.states = {index: _device(state) for index, state in states.items()}
        updater.states_synced = dict.fromkeys(states, False)
        optimizer._index_update_count.clear()
        optimizer._index_update_count.update(counts)
        optimizer.num_update = number


def _host(state: Any) -> Any:
    """The state of one parameter, which is nothing, an array, or a tuple of these, in NumPy."""
    if isinstance(state, (tuple, list)):
        return tuple(_host(each) for each in state)
    return state.asnumpy() if isinstance(state, mx.nd.NDArray) else state


def _device(state: Any) -> Any:
    """The reverse of :func:`_host`."""
    if isinstance(state, (tuple, list)):
        return tuple(_device(each) for each in state)
    return mx.nd.array(state, dtype=state.dtype) if isinstance(state, np.ndarray) else state


def run(func: Callable[Concatenate[StateT, P], T]) -> Callable[Concatenate[StateT, P], T]:
    """Decorates a training function, which is called again after every change of the job.

    Each call begins when all ranks have the same state. A rank that was lost sends all others back
    to their last commit.

    Args:
        func: ``func(state, *args, **kwargs)``; the state is a ``hvd.elastic.State``.

    Returns:
        A function with the same arguments, which returns what the last call of ``func`` does.
    """
    return run_fn(func, rejoin, partial(engine_errors, mx.base.MXNetError))
