"""Elastic training with JAX: it goes on when ranks come or go.

Example:
    >>> training = hvd.elastic.Training(params=params, opt_state=tx.init(params))
    >>> state = training.state
    >>> for epoch in training.epochs(10):
    ...     for images, labels in training.batches((images, labels), batch_size=32):
    ...         with training.guard():
    ...             state.params, state.opt_state = step(
    ...                 state.params, state.opt_state, images, labels, training.samples
    ...             )
"""

from horovod._rank.context import generation
from horovod._train.elastic.state import ObjectState, State
from horovod.jax.elastic.run import run
from horovod.jax.elastic.state import JaxState
from horovod.jax.elastic.training import Training

__all__ = ["JaxState", "ObjectState", "State", "Training", "generation", "run"]
