"""Elastic training with ``model.fit`` of Keras on PyTorch.

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

from typing import TYPE_CHECKING, Any

import keras

from horovod._keras.absent import MappedIndices
from horovod._keras.elastic_callbacks import (
    CommitStateCallback,
    UpdateBatchStateCallback,
    UpdateEpochStateCallback,
)
from horovod._keras.elastic_fit import Forgiving
from horovod._keras.elastic_training import Keras3Training
from horovod._keras.state import Keras3State
from horovod._rank import context
from horovod._rank.context import generation
from horovod._train.elastic.state import ObjectState, State
from horovod.torch.elastic import run
from horovod.torch.keras.aggregation import StepAggregation
from horovod.torch.keras.seam import SEAM

if TYPE_CHECKING:
    from horovod._train.elastic.ledger import Share

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


class KerasState(Keras3State):
    """The state of training; see :class:`horovod._keras.state.Keras3State`."""

    _seam = SEAM


class Training(Keras3Training):
    """See :class:`horovod._keras.elastic_training.Keras3Training`."""

    _state_class = KerasState

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._aggregation: StepAggregation | None = None

    def _joining(self) -> dict[str, Any]:
        return {}

    def _accumulate(self, optimizer: Any) -> None:
        if self._aggregation is None:
            self._aggregation = StepAggregation(self._reducer)
            optimizer._agg_helper = self._aggregation

    def _begin_aggregation(self, share: Share | None) -> None:
        if self._aggregation is not None:
            self._aggregation.begin(share)

    def _before_step(self, share: Share) -> None:
        self._begin_aggregation(None if self._step_samples is None else share)
        of_rank = share.of_step * context.size() / share.total
        self._reducer.weight = None if share.is_full else of_rank

    def _end_passes(self) -> None:
        super()._end_passes()
        self._begin_aggregation(None)

    def _forgive(self, plain: Any) -> Forgiving:
        return _Step(plain, self)


class _Step(Forgiving):
    """Takes the batch that has its turn, in place of the example that ``fit`` has read."""

    training: Training

    def __call__(self, *arguments: Any) -> Any:
        batch = keras.tree.map_structure(keras.ops.convert_to_tensor, self.training.next_batch())
        return super().__call__([batch])
