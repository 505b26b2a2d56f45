"""DistributedOptimizer with the order of arguments that ``horovod.keras`` has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from horovod._train.compression import NoneCompressor
from horovod._train.process_set import ProcessSet, global_process_set
from horovod._train.reduce_op import Average
from horovod.keras.backend import backend

if TYPE_CHECKING:
    from horovod._keras.absent import as_written
    from horovod._train.compression import CompressorLike
    from horovod._train.optimizer_options import Groups
else:
    as_written = backend.as_written


@as_written  # AutoGraph would add names of its own to locals()
def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: CompressorLike = NoneCompressor,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    num_groups: int = 0,
    groups: Groups = None,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
    shard_state: bool = False,
) -> Any:
    """:func:`horovod.tensorflow.keras.DistributedOptimizer` with another order of arguments.

    They mean the same there, and so do the result and the errors.
    """
    return backend.distribute(**locals())


@as_written  # AutoGraph would add names of its own to locals()
def PartialDistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: CompressorLike = NoneCompressor,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    groups: Groups = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """:func:`horovod.tensorflow.keras.PartialDistributedOptimizer` on any backend.

    The arguments mean the same there, and so do the result and the errors.
    """
    return backend.distribute(**locals())
