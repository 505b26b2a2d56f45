"""Horovod for ``tf.keras``: Keras 3, or Keras 2 (TF_USE_LEGACY_KERAS=1, or before TensorFlow 2.16).

Example:
    >>> import horovod.tensorflow.keras as hvd
    >>> hvd.init()
    >>> optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.01 * hvd.size()))
    >>> model.compile(optimizer, "sparse_categorical_crossentropy")
    >>> model.fit(images, labels, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])

Both generations may be there at once. Which one counts follows from the classes of what the script
hands over (:mod:`horovod.tensorflow.keras_generation`); nothing here imports a Keras of its own
accord. :mod:`horovod.keras` is made of the same.
"""

from typing import TYPE_CHECKING, Any

from horovod import __version__
from horovod._compat.absent import no_attribute
from horovod._keras.loading import load_model
from horovod._keras.local_steps.api import DiLoCo, LocalSGD
from horovod._train import interface
from horovod._train.interface import *  # noqa: F403
from horovod._train.shard.api import shard
from horovod.errors import HorovodInternalError
from horovod.tensorflow.compression import Compression
from horovod.tensorflow.keras import callbacks, elastic, values
from horovod.tensorflow.keras.distributing import DistributedOptimizer, PartialDistributedOptimizer
from horovod.tensorflow.keras.values import *  # noqa: F403
from horovod.tensorflow.keras_generation import refuse_other_backends

__all__ = [
    "Compression",
    "DiLoCo",
    "DistributedOptimizer",
    "HorovodInternalError",
    "LocalSGD",
    "PartialDistributedOptimizer",
    "__version__",
    "callbacks",
    "elastic",
    "load_model",
    "shard",
]
__all__ += interface.__all__
__all__ += values.__all__

refuse_other_backends()

if not TYPE_CHECKING:  # which would take any name for one that exists

    def __getattr__(name: str) -> Any:
        raise no_attribute(__name__, name)
