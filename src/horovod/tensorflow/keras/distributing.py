"""DistributedOptimizer as ``horovod.tensorflow.keras`` has it, and what all of its kind do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from horovod._keras.compiling import prepare_compile
from horovod._keras.copying import prepare_copies, reduced_optimizer
from horovod._keras.reducing_optimizer import Wrapping
from horovod._keras.sharding.refusals import check_sharding
from horovod._train.process_set import ProcessSet, global_process_set
from horovod._train.reduce_op import Average
from horovod.tensorflow.autograph import as_written
from horovod.tensorflow.compression import Compression
from horovod.tensorflow.keras.wrapping import begin, wrap
from horovod.tensorflow.keras_generation import checked_layers, keras_of
from horovod.tensorflow.reduction_settings import make_settings

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from horovod._train.compression import CompressorLike
    from horovod._train.optimizer_options import Groups, ReductionOptions
    from horovod.tensorflow.interface_types import Layers, Optimizer


def distribute(
    optimizer: Optimizer,
    name: str | None = None,
    *,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    local_layers: Layers = None,
    shard_state: bool = False,
    stacklevel: int = 5,
    **options: Unpack[ReductionOptions],
) -> Any:
    """Wraps a Keras optimizer.

    Args:
        optimizer: what to wrap.
        name: what the operations are called after; ``Distributed<class>`` if None.
        backward_passes_per_step: calls of ``apply`` per step.
        average_aggregated_gradients: divide the sum over the passes by their number.
        local_layers: a layer or a list of layers of which each rank has its own.
        shard_state: whether each rank has its share of the optimizer's state.
        stacklevel: frames from the check of the arguments to the user's line.
        **options: see :class:`horovod._train.optimizer_options.ReductionOptions`.

    Returns:
        A :class:`horovod._keras.reducing_optimizer.ReducingOptimizer`, which is also an
        instance of the class of ``optimizer``.

    Raises:
        UsageError: the arguments are wrong.
    """
    default_name = f"Distributed{type(optimizer).__name__}"
    settings = make_settings(name or default_name, stacklevel=stacklevel, **options)
    wrapping = Wrapping(
        settings,
        begin,
        reduced_optimizer,
        backward_passes_per_step,
        average_aggregated_gradients,
        shard_state,
    )
    if shard_state:
        check_sharding(optimizer, wrapping, local_layers)
    wrapped = wrap(optimizer, wrapping)
    wrapped.register_local_layers(checked_layers(local_layers))
    prepare_compile(keras_of(type(optimizer)))
    prepare_copies(keras_of(type(optimizer)))
    return wrapped


@as_written  # AutoGraph would add names of its own to locals()
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
    shard_state: bool = False,
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
        compression: how gradients travel: Compression.none, fp16, bf16, your own; or in 8 bits
            between hosts, with error feedback (docs/compression.md): int8, fp8, fp8_e5m2.
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
        shard_state: each rank keeps its share of the optimizer's state (ZeRO, stage 1). Gradients
            are reduce-scattered, and variables gathered. For optimizers of Keras 3 that compute
            element by element; others are refused.

    Returns:
        The optimizer to train with. Its ``register_local_var(variable)`` leaves a gradient out of
        the reduction.

    Raises:
        UsageError: the arguments are wrong.
    """
    return distribute(**locals())


@as_written  # AutoGraph would add names of its own to locals()
def PartialDistributedOptimizer(
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
    groups: Groups = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Layers = None,
    scale_local_gradients: bool = True,
) -> Any:
    """Like ``DistributedOptimizer``, except for some layers of which each rank has its own.

    All other arguments mean what they mean there.

    Args:
        local_layers: a Keras layer or a list of them. Their gradients stay on this rank.
        scale_local_gradients: divide these by the number of ranks, as the average of the others is.

    Raises:
        UsageError: the arguments are wrong.
    """
    return distribute(**locals())
