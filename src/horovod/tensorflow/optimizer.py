"""DistributedOptimizer for the optimizers of Keras and of tf.compat.v1."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from horovod._train.process_set import ProcessSet, global_process_set
from horovod._train.reduce_op import Average
from horovod.errors import UsageError
from horovod.tensorflow.autograph import as_written
from horovod.tensorflow.compression import Compression
from horovod.tensorflow.keras_generation import keras_of, kind_of

if TYPE_CHECKING:
    from horovod._train.compression import CompressorLike
    from horovod._train.optimizer_options import Groups
    from horovod.tensorflow.interface_types import Optimizer, V1Optimizer


@as_written  # AutoGraph would add names of its own to locals()
def DistributedOptimizer(
    optimizer: Optimizer | V1Optimizer,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: CompressorLike = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Groups = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Wraps an optimizer so that each step uses the gradients of all ranks.

    Args:
        optimizer: of Keras, or of ``tf.compat.v1.train``.
        name: what the operations are called after; ``Distributed<class>`` if None.
        use_locking: for ``tf.compat.v1`` optimizers.
        device_dense: where dense gradients are reduced; anywhere if empty.
        device_sparse: the same for ``tf.IndexedSlices``.
        compression: how gradients travel: Compression.none, fp16, bf16, your own; or in 8 bits
            between hosts, with error feedback (docs/compression.md): int8, fp8, fp8_e5m2.
        sparse_as_dense: reduce ``tf.IndexedSlices`` as dense tensors.
        backward_passes_per_step: add the gradients of this many passes up before they are reduced.
        op: Average or Sum; for ``tf.compat.v1`` optimizers also Adasum, which combines the ranks'
            steps.
        gradient_predivide_factor: divide by this before the sum, and by the rest after it.
        average_aggregated_gradients: divide the sum over the passes by their number.
        num_groups: deprecated name of ``groups``.
        groups: reduce gradients in groups, each as one operation: a number of groups of
            consecutive ones, or a list of lists of variables (the others go one by one).
        process_set: the ranks that take part; on others gradients stay as they are.
        scale_local_gradients: divide gradients of local variables by the number of ranks.

    Raises:
        UsageError: the optimizer is of another kind, or the arguments are wrong.

    Example:
        >>> optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.01 * hvd.size()))
    """
    options = dict(locals())  # all arguments, by the names that they keep
    use_locking = options.pop("use_locking")
    if isinstance(optimizer, tf.compat.v1.train.Optimizer):
        from horovod.tensorflow.optimizer_v1 import wrap_v1_optimizer

        return wrap_v1_optimizer(use_locking=use_locking, **options)
    # Keras is loaded for those who use it.
    from horovod.tensorflow.keras.distributing import distribute

    if keras_of(type(optimizer)) is None:
        raise UsageError(
            f"{kind_of(optimizer)} is an optimizer neither of Keras nor of tf.compat.v1.train"
        )
    return distribute(**options)
