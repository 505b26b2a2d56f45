"""Horovod for JAX, on CPUs and, by copies, on GPUs: collectives, in jit too, and optax optimizers.

Example:
    >>> import horovod.jax as hvd
    >>> hvd.init()
    >>> params = hvd.broadcast_parameters(params)
    >>> tx = hvd.DistributedOptimizer(optax.sgd(0.1))
"""

from typing import TYPE_CHECKING, Any

from horovod import __version__
from horovod._compat.absent import no_attribute
from horovod.errors import HorovodInternalError, ReplicasDivergedError
from horovod.jax import requirement

requirement.checked_jax()

# Whatever imports JAX comes behind that.
from horovod._train import interface  # noqa: E402
from horovod._train.interface import *  # noqa: E402, F403
from horovod._train.library_interface import Max, Min, Product  # noqa: E402
from horovod._train.shard.api import shard  # noqa: E402
from horovod.jax import derivatives, elastic, interrupts, logged, memory, ops  # noqa: E402, F401
from horovod.jax.batch_statistics import batch_statistics  # noqa: E402
from horovod.jax.cluster import register_cluster  # noqa: E402
from horovod.jax.compression import Compression  # noqa: E402
from horovod.jax.error_feedback import (  # noqa: E402
    FeedbackState,
    GradientErrors,
    init_gradient_errors,
    reduce_gradients_with_errors,
)
from horovod.jax.gradient_norm import gradient_norm  # noqa: E402
from horovod.jax.gradients import grad, reduce_gradients, value_and_grad  # noqa: E402
from horovod.jax.local_steps import DiLoCo, LocalSGD, LocalStepsState  # noqa: E402
from horovod.jax.objects import allgather_object, broadcast_object  # noqa: E402
from horovod.jax.ops import *  # noqa: E402, F403
from horovod.jax.optimizer import DistributedOptimizer, DistributedState  # noqa: E402
from horovod.jax.shares.state import ShardedState, gather_state, shard_state  # noqa: E402
from horovod.jax.state import broadcast_optimizer_state, broadcast_parameters  # noqa: E402
from horovod.jax.sync_check import check_in_sync  # noqa: E402

__all__ = [
    "Compression",
    "DiLoCo",
    "DistributedOptimizer",
    "DistributedState",
    "FeedbackState",
    "GradientErrors",
    "HorovodInternalError",
    "LocalSGD",
    "LocalStepsState",
    "Max",
    "Min",
    "Product",
    "ReplicasDivergedError",
    "ShardedState",
    "__version__",
    "allgather_object",
    "batch_statistics",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "check_in_sync",
    "elastic",
    "gather_state",
    "grad",
    "gradient_norm",
    "init_gradient_errors",
    "reduce_gradients",
    "reduce_gradients_with_errors",
    "shard",
    "shard_state",
    "value_and_grad",
]
__all__ += interface.__all__
__all__ += ops.__all__

register_cluster()
memory.keep_freed_memory()

if not TYPE_CHECKING:  # which would take any name for one that exists

    def __getattr__(name: str) -> Any:
        raise no_attribute(__name__, name)
