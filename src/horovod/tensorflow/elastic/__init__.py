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

from horovod.context import generation
from horovod.tensorflow.elastic.run import run
from horovod.tensorflow.elastic.state import TensorFlowKerasState, TensorFlowState
from horovod.train.elastic.state import ObjectState, State

__all__ = ["ObjectState", "State", "TensorFlowKerasState", "TensorFlowState", "generation", "run"]
