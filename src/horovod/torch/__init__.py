"""Horovod for PyTorch.

Example:
    >>> import horovod.torch as hvd
    >>> hvd.init()
    >>> hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    >>> optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
"""

from typing import TYPE_CHECKING, Any

from horovod import __version__
from horovod._compat.absent import no_attribute
from horovod._train import interface
from horovod._train.interface import *  # noqa: F403
from horovod._train.reduce_op import Max, Min, Product
from horovod.errors import HorovodInternalError, ReplicasDivergedError
from horovod.torch import elastic, functions, logged, mpi_ops, ops  # noqa: F401
from horovod.torch.compression import Compression
from horovod.torch.functions import *  # noqa: F403
from horovod.torch.gradient_norm import GradientNoiseScale, clip_grad_norm_, gradient_norm
from horovod.torch.local_steps import DiLoCo, LocalSGD
from horovod.torch.ops import *  # noqa: F403
from horovod.torch.optimizer import DistributedOptimizer
from horovod.torch.sharding import shard
from horovod.torch.sync_batch_norm import SyncBatchNorm
from horovod.torch.sync_check import check_in_sync

__all__ = [
    "Compression",
    "DiLoCo",
    "DistributedOptimizer",
    "GradientNoiseScale",
    "HorovodInternalError",
    "LocalSGD",
    "Max",
    "Min",
    "Product",
    "ReplicasDivergedError",
    "SyncBatchNorm",
    "__version__",
    "check_in_sync",
    "clip_grad_norm_",
    "elastic",
    "gradient_norm",
    "mpi_ops",
    "shard",
]
__all__ += functions.__all__
__all__ += interface.__all__
__all__ += ops.__all__

if not TYPE_CHECKING:  # which would take any name for one that exists

    def __getattr__(name: str) -> Any:
        raise no_attribute(__name__, name)
