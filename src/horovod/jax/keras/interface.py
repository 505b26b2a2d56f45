"""The names of :mod:`horovod.keras` that depend on the backend of Keras, on JAX."""

from horovod._keras.absent import as_written, broadcast_global_variables
from horovod._keras.host_values import broadcast_variables
from horovod._keras.loading import load_model
from horovod.jax.compression import Compression
from horovod.jax.keras import elastic
from horovod.jax.keras.seam import SEAM
from horovod.jax.keras.sync_batch_norm import SyncBatchNormalization
from horovod.jax.keras.values import allgather, allreduce, broadcast, reducescatter

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
