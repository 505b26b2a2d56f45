"""Elastic training with ``model.fit``: the state of a model, and callbacks that keep it.

Example:
    >>> state = hvd.elastic.KerasState(model, epoch=0, batch=0)
    >>> @hvd.elastic.run
    ... def train(state):
    ...     model.fit(data, epochs=10 - state.epoch, callbacks=[
    ...         hvd.elastic.UpdateEpochStateCallback(state),
    ...         hvd.elastic.UpdateBatchStateCallback(state),
    ...         hvd.elastic.CommitStateCallback(state, batches_per_commit=100),
    ...     ])
    >>> train(state)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from horovod._keras.elastic_callbacks import (
    CommitStateCallback,
    UpdateBatchStateCallback,
    UpdateEpochStateCallback,
)
from horovod._rank.context import generation
from horovod._train.elastic.state import ObjectState, State
from horovod.tensorflow.elastic import MappedIndices, TensorFlowKerasState, run
from horovod.tensorflow.keras.elastic_training import Training

if TYPE_CHECKING:
    from horovod.tensorflow.interface_types import Model, Optimizer

__all__ = [
    "CommitStateCallback",
    "KerasState",
    "MappedIndices",
    "ObjectState",
    "State",
    "Training",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
    "generation",
    "run",
]


class KerasState(TensorFlowKerasState):
    """A model, its optimizer, and any further objects.

    Args:
        model: of Keras 2 or 3, with its weights.
        optimizer: that of the model if None.
        kwargs: further attributes and their first values, such as ``epoch=0, batch=0``.

    Raises:
        UsageError: the model has no weights yet; call its ``build`` first.
    """

    epoch: int
    batch: int

    def __init__(self, model: Model, optimizer: Optimizer | None = None, **kwargs: object) -> None:
        super().__init__(model, optimizer, kwargs.pop("backend", None), **kwargs)
