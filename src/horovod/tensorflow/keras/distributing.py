"""From the arguments of ``DistributedOptimizer`` to a wrapped optimizer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from horovod._train.process_set import ProcessSet, global_process_set
from horovod._train.reduce_op import Average
from horovod.tensorflow.compression import Compression
from horovod.tensorflow.keras.compiling import prepare_compile
from horovod.tensorflow.keras.copying import prepare_copies, reduced_optimizer
from horovod.tensorflow.keras.reducing_optimizer import Wrapping
from horovod.tensorflow.keras.wrapping import wrap
from horovod.tensorflow.keras_generation import checked_layers, keras_of
from horovod.tensorflow.reduction_settings import make_settings

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from horovod.tensorflow.compression import CompressorLike
    from horovod.tensorflow.gradient_groups import Groups
    from horovod.tensorflow.interface_types import Layers, Optimizer
    from horovod.tensorflow.reduction_settings import ReductionOptions


def distribute(
    optimizer: Optimizer,
    name: str | None = None,
    *,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    local_layers: Layers = None,
    stacklevel: int = 4,
    **options: Unpack[ReductionOptions],
) -> Any:
    """Wraps a Keras optimizer.

    Args:
        optimizer: what to wrap.
        name: what the operations are called after; ``Distributed<class>`` if None.
        backward_passes_per_step: calls of ``apply`` per step.
        average_aggregated_gradients: divide the sum over the passes by their number.
        local_layers: a layer or a list of layers of which each rank has its own.
        stacklevel: frames from the check of the arguments to the user's line.
        **options: see :class:`horovod.tensorflow.reduction_settings.ReductionOptions`.

    Returns:
        A :class:`horovod.tensorflow.keras.reducing_optimizer.ReducingOptimizer`, which is also an
        instance of the class of ``optimizer``.

    Raises:
        UsageError: the arguments are wrong.
    """
    default_name = f"Distributed{type(optimizer).__name__}"
    settings = make_settings(name or default_name, stacklevel=stacklevel, **options)
    wrapping = Wrapping(
        settings, reduced_optimizer, backward_passes_per_step, average_aggregated_gradients
    )
    wrapped = wrap(optimizer, wrapping)
    wrapped._reducer.register_local_layers(checked_layers(local_layers))
    prepare_compile(keras_of(type(optimizer)))
    prepare_copies(keras_of(type(optimizer)))
    return wrapped


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
