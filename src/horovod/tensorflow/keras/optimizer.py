"""DistributedOptimizer as ``horovod.tensorflow.keras`` has it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from horovod._train.process_set import ProcessSet, global_process_set
from horovod._train.reduce_op import Average
from horovod.tensorflow.compression import Compression
from horovod.tensorflow.keras.distributing import distribute

if TYPE_CHECKING:
    from horovod.tensorflow.compression import CompressorLike
    from horovod.tensorflow.gradient_groups import Groups
    from horovod.tensorflow.interface_types import Optimizer


def DistributedOptimizer(
    optimizer: Optimizer,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: CompressorLike = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Groups = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Wraps a Keras optimizer so that each step uses the gradients of all ranks.

    They are reduced once: where the optimizer computes them, or else where it applies them, whether
    by ``model.fit``, ``minimize``, ``apply_gradients`` or ``apply``. The result is an instance of
    the same class (by name and ``isinstance``) that shares all state with ``optimizer``; use it
    instead of ``optimizer``. Copies and pickles reduce, too. Saved models load without Horovod,
    with a plain optimizer; :func:`load_model` wraps it. For mixed precision, give it a
    LossScaleOptimizer, or let ``model.compile`` make one.

    Args:
        optimizer: of Keras 3, or of Keras 2 (tf_keras, or TensorFlow's own), also a legacy one.
        name: what the operations are called after; ``Distributed<class>`` if None.
        device_dense: where dense gradients are reduced; anywhere if empty.
        device_sparse: the same for ``tf.IndexedSlices``.
        compression: how gradients travel: Compression.none, fp16, bf16, or your own.
        sparse_as_dense: reduce ``tf.IndexedSlices`` as dense tensors.
        gradient_predivide_factor: divide by this before the sum, and by the rest after it.
        op: Average or Sum.
        backward_passes_per_step: add the gradients of this many calls up before they are reduced
            and applied; the other calls only count.
        average_aggregated_gradients: divide that sum by the number of calls.
        num_groups: deprecated name of ``groups``.
        groups: reduce gradients in groups, each as one operation: a number of groups of
            consecutive ones, or a list of lists of variables (the others go one by one).
        process_set: the ranks that take part; on others gradients stay as they are.
        scale_local_gradients: divide gradients of local variables by the number of ranks.

    Returns:
        The optimizer to train with. Its ``register_local_var(variable)`` leaves a gradient out of
        the reduction.

    Raises:
        UsageError: the arguments are wrong.
    """
    return distribute(**locals())
