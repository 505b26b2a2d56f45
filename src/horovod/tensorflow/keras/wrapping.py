"""Wraps an optimizer of any Keras, so that it uses the gradients of all ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from horovod._train.gradients import check_passes
from horovod._train.reduce_op import Average, Sum
from horovod.errors import UsageError
from horovod.tensorflow.keras import optimizer_keras2, optimizer_keras3
from horovod.tensorflow.keras.reducing_optimizer import (
    ReducingOptimizer,
    share_state,
    wrapped_class,
)
from horovod.tensorflow.keras_generation import check_optimizer, generation_of

if TYPE_CHECKING:
    from horovod.tensorflow.interface_types import Optimizer
    from horovod.tensorflow.keras.reducing_optimizer import Wrapping


def wrap(optimizer: Optimizer, wrapping: Wrapping) -> Any:
    """Makes an instance of the same class, by name, that shares the optimizer's whole state.

    Args:
        optimizer: a Keras optimizer; use the result instead of it.
        wrapping: what to do.

    Returns:
        A :class:`ReducingOptimizer`.

    Raises:
        UsageError: the optimizer or the arguments are wrong.
    """
    keras = check_optimizer(optimizer)
    _check(optimizer, wrapping)
    module = optimizer_keras3 if generation_of(keras) >= 3 else optimizer_keras2
    module.refuse_inner(optimizer)
    added = module.reducing_class(optimizer)
    wrapped = share_state(optimizer, wrapped_class(added, type(optimizer), wrapping))
    wrapped._begin()
    return wrapped


def _check(optimizer: Any, wrapping: Wrapping) -> None:
    if isinstance(optimizer, ReducingOptimizer):
        raise UsageError("the optimizer is a DistributedOptimizer already")
    if wrapping.settings.op not in (Average, Sum):
        raise UsageError(
            f"op={wrapping.settings.op.name.title()} is not possible with Keras optimizers; use "
            "hvd.Average or hvd.Sum"
        )
    check_passes(wrapping.passes)
    if wrapping.passes > 1 and getattr(optimizer, "gradient_accumulation_steps", None):
        raise UsageError(
            "backward_passes_per_step and gradient_accumulation_steps both add gradients up; give "
            "the optimizer only one of them"
        )
