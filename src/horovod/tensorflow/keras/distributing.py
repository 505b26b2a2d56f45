"""From the arguments of ``DistributedOptimizer`` to a wrapped optimizer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from horovod._train.process_set import ProcessSet, global_process_set
from horovod._train.reduce_op import Average
from horovod.tensorflow.compression import Compression
from horovod.tensorflow.gradient_reducer import make_settings
from horovod.tensorflow.keras.compiling import prepare_compile
from horovod.tensorflow.keras.copying import prepare_copies
from horovod.tensorflow.keras.reducing_optimizer import Wrapping, wrap
from horovod.tensorflow.keras_generation import checked_layers, keras_of

if TYPE_CHECKING:
    from horovod.tensorflow.gradient_groups import Groups


def distribute(
    optimizer: Any,
    name: str | None = None,
    *,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    local_layers: Any = None,
    stacklevel: int = 4,
    **options: Any,
) -> Any:
    """Wraps a Keras optimizer.

    Args:
        optimizer: what to wrap.
        name: what the operations are called after; ``Distributed<class>`` if None.
        backward_passes_per_step: calls of ``apply`` per step.
        average_aggregated_gradients: divide the sum over the passes by their number.
        local_layers: a layer or a list of layers of which each rank has its own.
        stacklevel: frames from the check of the arguments to the user's line.
        **options: see :func:`horovod.tensorflow.gradient_reducer.make_settings`.

    Returns:
        A :class:`horovod.tensorflow.keras.reducing_optimizer.ReducingOptimizer`, which is also an
        instance of the class of ``optimizer``.

    Raises:
        UsageError: the arguments are wrong.
    """
    default_name = f"Distributed{type(optimizer).__name__}"
    settings = make_settings(name or default_name, stacklevel=stacklevel, **options)
    wrapping = Wrapping(settings, backward_passes_per_step, average_aggregated_gradients)
    wrapped = wrap(optimizer, wrapping)
    wrapped.register_local_layers(checked_layers(local_layers))
    prepare_compile(keras_of(type(optimizer)))
    prepare_copies(keras_of(type(optimizer)))
    return wrapped


def PartialDistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
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
    """Like ``DistributedOptimizer``, except for some layers of which each rank has its own.

    Args:
        optimizer: see ``DistributedOptimizer``, as for all but the following.
        name: see there.
        device_dense: see there.
        device_sparse: see there.
        compression: see there.
        sparse_as_dense: see there.
        gradient_predivide_factor: see there.
        op: see there.
        backward_passes_per_step: see there.
        average_aggregated_gradients: see there.
        groups: see there.
        process_set: see there.
        local_layers: a Keras layer or a list of them. Their gradients stay on this rank.
        scale_local_gradients: divide these by the number of ranks, as the average of the others is.

    Raises:
        UsageError: the arguments are wrong.
    """
    return distribute(
        optimizer,
        name,
        backward_passes_per_step=backward_passes_per_step,
        average_aggregated_gradients=average_aggregated_gradients,
        local_layers=local_layers,
        op=op,
        gradient_predivide_factor=gradient_predivide_factor,
        groups=groups,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        process_set=process_set,
        device_dense=device_dense,
        device_sparse=device_sparse,
        scale_local_gradients=scale_local_gradients,
    )
