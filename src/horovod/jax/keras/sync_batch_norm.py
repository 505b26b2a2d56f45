"""Batch normalization over the batches of all ranks, for Keras on JAX."""

from __future__ import annotations

from typing import Any

import keras

from horovod._keras.sync_batch_norm import SyncBatchNormalization3
from horovod.jax.ops import allgather

__all__ = ["SyncBatchNormalization"]


@keras.saving.register_keras_serializable(package="horovod")
class SyncBatchNormalization(SyncBatchNormalization3):
    """The layer; see :class:`horovod._keras.sync_batch_norm.SyncBatchNormalization3`."""

    def _gathered(self, row: Any, name: str, size: int) -> Any:
        return allgather(row, name=name, sizes=[1] * size, process_set=self.process_set)

    def _is_symbolic(self, inputs: Any) -> bool:
        return False
