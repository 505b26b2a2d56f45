"""Horovod for Keras: Keras 3 on TensorFlow, JAX or PyTorch, or Keras 2 (tf_keras, or TensorFlow's).

The backend is that of the Keras that is in use, as ``KERAS_BACKEND`` says; TensorFlow is loaded
only if Keras runs on it.

Example:
    >>> import horovod.keras as hvd
    >>> hvd.init()
    >>> optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.01 * hvd.size()))
    >>> model.compile(optimizer, "sparse_categorical_crossentropy")
    >>> model.fit(images, labels, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
"""

from typing import TYPE_CHECKING, Any

from horovod import __version__
from horovod._compat.absent import no_attribute
from horovod._keras.local_steps.api import DiLoCo, LocalSGD
from horovod._keras.saving import save_model
from horovod._train import interface
from horovod._train.interface import *  # noqa: F403
from horovod._train.shard.api import shard
from horovod.errors import HorovodInternalError
from horovod.keras import callbacks, elastic
from horovod.keras.optimizer import DistributedOptimizer, PartialDistributedOptimizer

if TYPE_CHECKING:
    from horovod.tensorflow.compression import Compression
    from horovod.tensorflow.keras import load_model
    from horovod.tensorflow.keras.values import (
        allgather,
        allreduce,
        broadcast,
        broadcast_global_variables,
        reducescatter,
    )
    from horovod.tensorflow.state import broadcast_variables
    from horovod.tensorflow.sync_batch_norm import SyncBatchNormalization
else:
    from horovod.keras.backend import backend

    Compression = backend.Compression
    SyncBatchNormalization = backend.SyncBatchNormalization
    allgather = backend.allgather
    allreduce = backend.allreduce
    broadcast = backend.broadcast
    broadcast_global_variables = backend.broadcast_global_variables
    broadcast_variables = backend.broadcast_variables
    load_model = backend.load_model
    reducescatter = backend.reducescatter

__all__ = [
    "Compression",
    "DiLoCo",
    "DistributedOptimizer",
    "HorovodInternalError",
    "LocalSGD",
    "PartialDistributedOptimizer",
    "SyncBatchNormalization",
    "__version__",
    "allgather",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_variables",
    "callbacks",
    "elastic",
    "load_model",
    "reducescatter",
    "save_model",
    "shard",
]
__all__ += interface.__all__

if not TYPE_CHECKING:  # which would take any name for one that exists

    def __getattr__(name: str) -> Any:
        raise no_attribute(__name__, name)
