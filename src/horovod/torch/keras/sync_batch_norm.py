"""Batch normalization over the batches of all ranks, for Keras on PyTorch."""

from __future__ import annotations

from typing import Any

import keras

from horovod._keras.sync_batch_norm import SyncBatchNormalization3
from horovod.torch.exchanges import allgather

__all__ = ["SyncBatchNormalization"]


@keras.saving.register_keras_serializable(package="horovod")
class SyncBatchNormalization(SyncBatchNormalization3):
    """The layer; see :class:`horovod._keras.sync_batch_norm.SyncBatchNormalization3`."""

    def _gathered(self, row: Any, name: str, size: int) -> Any:
        rows = allgather(row, name, self.process_set)
        if rows.requires_grad:
            # Its gradient is the average of the ranks', but a row is in the losses of all ranks.
            rows.register_hook(lambda gradient: gradient * size)  # type: ignore[no-untyped-call]
        return rows

    def _is_symbolic(self, inputs: Any) -> bool:
        return bool(inputs.is_meta)
