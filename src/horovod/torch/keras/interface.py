"""The names of :mod:`horovod.keras` that depend on the backend of Keras, on PyTorch."""

from horovod._keras.absent import as_written, broadcast_global_variables
from horovod._keras.host_values import broadcast_variables
from horovod._keras.loading import load_model
from horovod.torch.compression import Compression
from horovod.torch.keras import elastic
from horovod.torch.keras.seam import SEAM
from horovod.torch.keras.sync_batch_norm import SyncBatchNormalization
from horovod.torch.keras.values import allgather, allreduce, broadcast, reducescatter

distribute = SEAM.distribute

__all__ = [
    "Compression",
    "SyncBatchNormalization",
    "allgather",
    "allreduce",
    "as_written",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_variables",
    "distribute",
    "elastic",
    "load_model",
    "reducescatter",
]
