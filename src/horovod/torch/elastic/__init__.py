"""Elastic training with PyTorch: a training function that goes on when ranks come or go.

Example:
    >>> state = hvd.elastic.TorchState(model, optimizer, epoch=0)
    >>> @hvd.elastic.run
    ... def train(state):
    ...     for state.epoch in range(state.epoch, epochs):
    ...         train_one_epoch(state)
    ...         state.commit()
    >>> train(state)
"""

from horovod._rank.context import generation
from horovod._train.elastic.run import run
from horovod._train.elastic.state import ObjectState, State
from horovod.torch.elastic.batch_sampler import ElasticBatchSampler
from horovod.torch.elastic.sampler import ElasticSampler
from horovod.torch.elastic.state import TorchState
from horovod.torch.elastic.training import Training

__all__ = [
    "ElasticBatchSampler",
    "ElasticSampler",
    "ObjectState",
    "State",
    "TorchState",
    "Training",
    "generation",
    "run",
]
