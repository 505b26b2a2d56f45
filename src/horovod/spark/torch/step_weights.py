"""Weigh the gradients of ranks in steps in which they have different numbers of rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horovod.torch.optimizer import ReducingOptimizer

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch

    from horovod.spark.common.epoch_loop import EpochLoop


class StepWeights:
    """Gives the gradients of this rank the weight of its rows, if ranks may come and go.

    Args:
        optimizers: of :func:`horovod.torch.DistributedOptimizer`.
    """

    def __init__(self, optimizers: Iterable[torch.optim.Optimizer]) -> None:
        self._optimizers = [
            optimizer for optimizer in optimizers if isinstance(optimizer, ReducingOptimizer)
        ]
        self._has_passes = any(
            optimizer.backward_passes_per_step > 1 for optimizer in self._optimizers
        )
        self._weighs = False

    def before_step(self, loop: EpochLoop) -> int:
        """Prepare the next step; return how many rows of this rank count in it."""
        rows = loop.counted()
        # Either all passes of a step have a weight or none, and any later one may be short.
        weighs = loop.is_elastic and (not loop.is_full() or self._has_passes)
        if weighs or self._weighs:
            for optimizer in self._optimizers:
                optimizer.set_weight(rows if weighs else None)
        self._weighs = weighs
        return rows
