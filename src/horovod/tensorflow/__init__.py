"""Horovod for TensorFlow 2: eager, ``tf.function``, and graphs for sessions.

Example:
    >>> import horovod.tensorflow as hvd
    >>> hvd.init()
    >>> hvd.allreduce(tf.ones(3))
"""

from typing import TYPE_CHECKING, Any

from horovod import __version__
from horovod._compat.absent import no_attribute
from horovod._keras.local_steps.api import DiLoCo, LocalSGD
from horovod._train import interface
from horovod._train.interface import *  # noqa: F403
from horovod._train.library_interface import (
    Max,
    Min,
    Product,
    check_num_rank_power_of_2,
    gpu_available,
    handle_average_backwards_compatibility,
    split_list,
)
from horovod._train.shard.api import shard
from horovod.errors import HorovodInternalError, ReplicasDivergedError
from horovod.tensorflow import elastic, logged, mpi_ops, ops  # noqa: F401
from horovod.tensorflow.compression import Compression
from horovod.tensorflow.gradient_aggregation import LocalGradientAggregationHelper
from horovod.tensorflow.gradient_norm import gradient_norm
from horovod.tensorflow.objects import allgather_object, broadcast_object, broadcast_object_fn
from horovod.tensorflow.ops import *  # noqa: F403
from horovod.tensorflow.optimizer import DistributedOptimizer
from horovod.tensorflow.state import (
    BroadcastGlobalVariablesHook,
    broadcast_global_variables,
    broadcast_variables,
)
from horovod.tensorflow.sync_batch_norm import SyncBatchNormalization
from horovod.tensorflow.sync_check import check_in_sync
from horovod.tensorflow.tape import DistributedGradientTape, PartialDistributedGradientTape
from horovod.tensorflow.util import (
    _cache,
    _executing_eagerly,
    _make_subgraph,
    refs_to_vars,
    vars_to_refs,
)

__all__ = [
    "BroadcastGlobalVariablesHook",
    "Compression",
    "DiLoCo",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "HorovodInternalError",
    "LocalGradientAggregationHelper",
    "LocalSGD",
    "Max",
    "Min",
    "PartialDistributedGradientTape",
    "Product",
    "ReplicasDivergedError",
    "SyncBatchNormalization",
    "__version__",
    "_cache",
    "_executing_eagerly",
    "_make_subgraph",
    "allgather_object",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "check_in_sync",
    "check_num_rank_power_of_2",
    "elastic",
    "gpu_available",
    "gradient_norm",
    "handle_average_backwards_compatibility",
    "mpi_ops",
    "refs_to_vars",
    "shard",
    "split_list",
    "vars_to_refs",
]
__all__ += interface.__all__
__all__ += ops.__all__

if not TYPE_CHECKING:  # which would take any name for one that exists

    def __getattr__(name: str) -> Any:
        raise no_attribute(__name__, name)
