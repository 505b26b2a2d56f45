"""Batch normalization of Keras 3 over the batches of all ranks, on JAX and PyTorch."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import keras
from keras import ops

from horovod._train.batch_statistics import merged_moments
from horovod._train.numbering import JobNumber, NameNumbers
from horovod._train.optimizer_options import reduces
from horovod._train.process_set import ProcessSet, global_process_set, group_of
from horovod.errors import UsageError

_KIND = "SyncBatchNormalization"
_numbers = NameNumbers()


class SyncBatchNormalization3(keras.layers.BatchNormalization):  # type: ignore[misc]
    """Batch normalization over the batches of all ranks; takes the place of BatchNormalization.

    In training mean and variance are those of all ranks' batches together, which may differ in size
    and may be empty on some ranks. The forward pass sends one small message, the backward pass
    another. In inference, on a single rank, and on ranks outside of the process set it is ordinary
    batch normalization.

    Gradients of gamma and beta are those of this rank's batch; the optimizer reduces them. The
    gradient of the input is that of the sum of all ranks' losses.

    All ranks must run their layers in the same order.

    Args:
        process_set: the ranks whose batches are normalized together. A saved layer forgets it.
        kwargs: those of keras.layers.BatchNormalization.

    Raises:
        UsageError: ``fused`` or ``synchronized`` is given, which are of TensorFlow.

    Example:
        >>> model = keras.Sequential([keras.layers.Dense(16), hvd.SyncBatchNormalization()])
    """

    def __init__(self, *, process_set: ProcessSet = global_process_set, **kwargs: Any) -> None:
        for argument in ("fused", "synchronized"):
            if kwargs.pop(argument, False):
                raise UsageError(
                    f"SyncBatchNormalization({argument}=True) is for TensorFlow alone; leave it out"
                )
        super().__init__(**kwargs)
        self.process_set = process_set
        self._job_number = JobNumber(_numbers, [_KIND])

    def _moments(self, inputs: Any, mask: Any) -> tuple[Any, Any]:
        group = group_of(self.process_set)
        if not reduces(group) or self._is_symbolic(inputs):
            moments: tuple[Any, Any] = super()._moments(inputs, mask)
            return moments
        axes = list(self._reduction_axes)
        present = ops.ones_like(inputs)
        if mask is not None:
            # As Keras has it: the mask lacks the last dimension.
            present = present * ops.cast(ops.expand_dims(mask, -1), inputs.dtype)
            # What does not count may be NaN, which would be left in gradients.
            inputs = ops.where(present > 0, inputs, ops.zeros_like(inputs))
        count = ops.sum(present, axes)
        divisor = ops.maximum(count, 1)
        mean = ops.sum(inputs, axes) / divisor
        deviations = (inputs - ops.expand_dims(mean, axes)) * present
        variance = ops.sum(ops.square(deviations), axes) / divisor
        row = ops.stack([count, mean, variance])
        name = f"{_KIND}.{self._job_number.within(group)}"
        rows = self._gathered(row[None], name, group.size)
        counts, means, variances = rows[:, 0], rows[:, 1], rows[:, 2]
        total = ops.sum(counts, 0)
        shares = counts / ops.maximum(total, 1)
        merged: tuple[Any, Any] = merged_moments(
            shares, means, variances, lambda values: ops.sum(values, 0)
        )
        return merged

    @abstractmethod
    def _gathered(self, row: Any, name: str, size: int) -> Any:
        """Return the rows of all ranks; differentiable."""

    @abstractmethod
    def _is_symbolic(self, inputs: Any) -> bool:
        """Whether Keras only asks for shapes."""
