"""DistributedOptimizer with the order of arguments that ``horovod.keras`` has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from horovod._train.process_set import ProcessSet, global_process_set
from horovod._train.reduce_op import Average
from horovod.tensorflow.autograph import as_written
from horovod.tensorflow.compression import Compression
from horovod.tensorflow.keras.distributing import distribute

if TYPE_CHECKING:
    from horovod._train.compression import CompressorLike
    from horovod.tensorflow.gradient_groups import Groups


@as_written  # AutoGraph would add names of its own to locals()
def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: CompressorLike = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    num_groups: int = 0,
    groups: Groups = None,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """:func:`horovod.tensorflow.keras.DistributedOptimizer` with another order of arguments.

    They mean the same there, and so do the result and the errors.
    """
    return distribute(**locals())
