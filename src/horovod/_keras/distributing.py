"""Wraps the optimizers of Keras 3 on JAX and PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from horovod._keras.compiling import prepare_compile
from horovod._keras.copying import prepare_copies, reduced_optimizer
from horovod._keras.loss_scale import refuse_inner
from horovod._keras.reducing_optimizer import (
    Wrapping,
    check_wrapping,
    share_state,
    wrapped_class,
)
from horovod._keras.settings import make_settings
from horovod._keras.sharding.optimizer import wrap_in_shares
from horovod._keras.sharding.refusals import check_sharding
from horovod._keras.which import backend_of, checked_layers, generation_of, keras_of, kind_of
from horovod.errors import UsageError

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from horovod._keras.keras3_seam import Keras3Seam
    from horovod._train.optimizer_options import ReductionOptions


def distribute(
    seam: Keras3Seam,
    optimizer: Any,
    name: str | None = None,
    *,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    local_layers: Any = None,
    shard_state: bool = False,
    stacklevel: int = 5,
    **options: Unpack[ReductionOptions],
) -> Any:
    """Wraps a Keras optimizer.

    Args:
        seam: the functions of the backend.
        optimizer: what to wrap.
        name: what the operations are called after; ``Distributed<class>`` if None.
        backward_passes_per_step: calls of ``apply`` per step.
        average_aggregated_gradients: divide the sum over the passes by their number.
        local_layers: a layer or a list of layers of which each rank has its own.
        shard_state: whether each rank has its share of the optimizer's state.
        stacklevel: frames from the check of the arguments to the user's line.
        **options: see :class:`horovod._train.optimizer_options.ReductionOptions`.

    Returns:
        A :class:`horovod._keras.reducing_optimizer.ReducingOptimizer`, which is also an instance of
        the class of ``optimizer``.

    Raises:
        UsageError: the arguments are wrong.
    """
    default_name = f"Distributed{type(optimizer).__name__}"
    settings = make_settings(name or default_name, seam, stacklevel=stacklevel, **options)
    wrapping = Wrapping(
        settings,
        seam.begin_sharding if shard_state else seam.begin,
        reduced_optimizer,
        backward_passes_per_step,
        average_aggregated_gradients,
        shard_state,
    )
    if shard_state:
        check_sharding(optimizer, wrapping, local_layers)
    wrapped = wrap(seam, optimizer, wrapping)
    wrapped.register_local_layers(checked_layers(local_layers))
    prepare_compile(keras_of(type(optimizer)))
    prepare_copies(keras_of(type(optimizer)))
    return wrapped


def wrap(seam: Keras3Seam, optimizer: Any, wrapping: Wrapping) -> Any:
    """Makes an instance of the same class, by name, that shares the optimizer's whole state.

    Args:
        seam: the functions of the backend.
        optimizer: a Keras optimizer; use the result instead of it.
        wrapping: what to do.

    Returns:
        A :class:`ReducingOptimizer`.

    Raises:
        UsageError: the optimizer or the arguments are wrong.
    """
    keras = keras_of(type(optimizer))
    if keras is None or not hasattr(optimizer, "apply_gradients"):
        raise UsageError(f"{kind_of(optimizer)} is no optimizer of Keras")
    if generation_of(keras) < 3 or backend_of(keras) != seam.backend:
        raise UsageError(
            f"{kind_of(optimizer)} is of Keras {keras.__version__} on {backend_of(keras)}, but "
            f"horovod.keras was imported for Keras on {seam.backend}"
        )
    check_wrapping(optimizer, wrapping)
    refuse_inner(optimizer)
    if wrapping.shard_state:
        return wrap_in_shares(seam.sharding_class, optimizer, wrapping)
    wrapped = share_state(optimizer, wrapped_class(seam.optimizer_class, type(optimizer), wrapping))
    wrapped._begin()
    return wrapped
