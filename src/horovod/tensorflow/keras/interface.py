"""The names of :mod:`horovod.keras` that depend on the backend of Keras, on TensorFlow."""

from horovod._keras.loading import load_model
from horovod.tensorflow.autograph import as_written
from horovod.tensorflow.compression import Compression
from horovod.tensorflow.keras import elastic
from horovod.tensorflow.keras.distributing import distribute
from horovod.tensorflow.keras.values import (
    allgather,
    allreduce,
    broadcast,
    broadcast_global_variables,
    reducescatter,
)
from horovod.tensorflow.state import broadcast_variables
from horovod.tensorflow.sync_batch_norm import SyncBatchNormalization

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
