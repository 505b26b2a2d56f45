"""Horovod for TensorFlow 2: eager, ``tf.function``, and graphs for sessions.

Example:
    >>> import horovod.tensorflow as hvd
    >>> hvd.init()
    >>> hvd.allreduce(tf.ones(3))
"""

from typing import TYPE_CHECKING, Any

from horovod import __version__
from horovod.absent import no_attribute
from horovod.context import (
    cross_rank,
    cross_size,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
    start_timeline,
    stop_timeline,
)
from horovod.errors import HorovodInternalError, ReplicasDivergedError
from horovod.tensorflow import mpi_ops
from horovod.tensorflow.compression import Compression
from horovod.tensorflow.gradient_aggregation import LocalGradientAggregationHelper
from horovod.tensorflow.mpi_ops import (
    _allreduce,
    check_num_rank_power_of_2,
    gpu_available,
    handle_average_backwards_compatibility,
    split_list,
)
from horovod.tensorflow.objects import allgather_object, broadcast_object, broadcast_object_fn
from horovod.tensorflow.ops import (
    allgather,
    allreduce,
    alltoall,
    barrier,
    broadcast,
    broadcast_,
    grouped_allgather,
    grouped_allreduce,
    grouped_reducescatter,
    join,
    reducescatter,
)
from horovod.tensorflow.optimizer import DistributedOptimizer
from horovod.tensorflow.rank_ops import (
    local_rank_op,
    local_size_op,
    process_set_included_op,
    rank_op,
    size_op,
)
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
from horovod.train.capabilities import (
    ccl_built,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rocm_built,
)
from horovod.train.process_set import (
    ProcessSet,
    add_process_set,
    global_process_set,
    remove_process_set,
)
from horovod.train.reduce_op import Adasum, Average, Max, Min, Product, Sum

__all__ = [
    "Adasum",
    "Average",
    "BroadcastGlobalVariablesHook",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "HorovodInternalError",
    "LocalGradientAggregationHelper",
    "Max",
    "Min",
    "PartialDistributedGradientTape",
    "ProcessSet",
    "Product",
    "ReplicasDivergedError",
    "Sum",
    "SyncBatchNormalization",
    "__version__",
    "_allreduce",
    "_cache",
    "_executing_eagerly",
    "_make_subgraph",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "ccl_built",
    "check_in_sync",
    "check_num_rank_power_of_2",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "gpu_available",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "handle_average_backwards_compatibility",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_rank_op",
    "local_size",
    "local_size_op",
    "mpi_built",
    "mpi_enabled",
    "mpi_ops",
    "mpi_threads_supported",
    "nccl_built",
    "process_set_included_op",
    "rank",
    "rank_op",
    "reducescatter",
    "refs_to_vars",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "size_op",
    "split_list",
    "start_timeline",
    "stop_timeline",
    "vars_to_refs",
]

if not TYPE_CHECKING:  # which would take any name for one that exists

    def __getattr__(name: str) -> Any:
        raise no_attribute(__name__, name)
