"""Elastic training with TensorFlow: eager, ``tf.function``, and sessions of ``tf.compat.v1``.

Example:
    >>> state = hvd.elastic.TensorFlowKerasState(model, optimizer, epoch=0)
    >>> @hvd.elastic.run
    ... def train(state):
    ...     for state.epoch in range(state.epoch, 10):
    ...         ...
    ...         state.commit()
    >>> train(state)
"""

from horovod._rank.context import generation
from horovod._train.elastic.state import ObjectState, State
from horovod.tensorflow.elastic.run import run
from horovod.tensorflow.elastic.samples import MappedIndices
from horovod.tensorflow.elastic.state import TensorFlowKerasState, TensorFlowState
from horovod.tensorflow.elastic.training import Training

__all__ = [
    "MappedIndices",
    "ObjectState",
    "State",
    "TensorFlowKerasState",
    "TensorFlowState",
    "Training",
    "generation",
    "run",
]
