"""Horovod for Keras on TensorFlow: Keras 3, or Keras 2 (tf_keras, or that of TensorFlow to 2.15).

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
from horovod._train import interface
from horovod._train.interface import *  # noqa: F403
from horovod.errors import HorovodInternalError
from horovod.keras import callbacks, elastic
from horovod.keras.optimizer import DistributedOptimizer
from horovod.tensorflow.compression import Compression
from horovod.tensorflow.keras import PartialDistributedOptimizer, load_model, values
from horovod.tensorflow.keras.values import *  # noqa: F403

__all__ = [
    "Compression",
    "DistributedOptimizer",
    "HorovodInternalError",
    "PartialDistributedOptimizer",
    "__version__",
    "callbacks",
    "elastic",
    "load_model",
]
__all__ += interface.__all__
__all__ += values.__all__

if not TYPE_CHECKING:  # which would take any name for one that exists

    def __getattr__(name: str) -> Any:
        raise no_attribute(__name__, name)
