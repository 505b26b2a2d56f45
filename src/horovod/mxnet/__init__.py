"""Horovod for MXNet 1.9.1, which is retired: the interface of old scripts, which does not grow.

Example:
    >>> import horovod.mxnet as hvd
    >>> hvd.init()
    >>> hvd.broadcast_parameters(net.collect_params(), root_rank=0)
    >>> trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
"""

from typing import TYPE_CHECKING, Any

from horovod import __version__
from horovod._compat.absent import no_attribute
from horovod.errors import HorovodInternalError, ReplicasDivergedError
from horovod.mxnet import requirement

requirement.checked_mxnet()

# Whatever imports MXNet comes behind that.
from horovod._train import interface  # noqa: E402
from horovod._train.interface import *  # noqa: E402, F403
from horovod._train.library_interface import Max, Min, Product  # noqa: E402
from horovod._train.shard.api import shard  # noqa: E402
from horovod.mxnet import elastic, functions, logged, mpi_ops, ops  # noqa: E402, F401
from horovod.mxnet.compression import Compression  # noqa: E402
from horovod.mxnet.errors import FailedOperationError  # noqa: E402
from horovod.mxnet.functions import *  # noqa: E402, F403
from horovod.mxnet.ops import *  # noqa: E402, F403
from horovod.mxnet.optimizer import DistributedOptimizer  # noqa: E402
from horovod.mxnet.sync_check import check_in_sync  # noqa: E402
from horovod.mxnet.trainer import DistributedTrainer  # noqa: E402

__all__ = [
    "Compression",
    "DistributedOptimizer",
    "DistributedTrainer",
    "FailedOperationError",
    "HorovodInternalError",
    "Max",
    "Min",
    "Product",
    "ReplicasDivergedError",
    "__version__",
    "check_in_sync",
    "elastic",
    "mpi_ops",
    "shard",
]
__all__ += functions.__all__
__all__ += interface.__all__
__all__ += ops.__all__

if not TYPE_CHECKING:  # which would take any name for one that exists

    def __getattr__(name: str) -> Any:
        raise no_attribute(__name__, name)
