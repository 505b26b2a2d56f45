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

    def _joining(self) -> dict[str, Any]:
        return {}

    def _before_step(self, share: Share) -> None:
        of_rank = share.samples * context.size() / share.total
        self._reducer.weight = None if share.is_full else of_rank

    def _forgive(self, plain: Any) -> Forgiving:
        return _Step(plain, self)


class _Step(Forgiving):
    """Takes the batch that has its turn, in place of the example that ``fit`` has read."""

    training: Training

    def __call__(self, *arguments: Any) -> Any:
        batch = keras.tree.map_structure(keras.ops.convert_to_tensor, self.training.next_batch())
        return super().__call__([batch])
