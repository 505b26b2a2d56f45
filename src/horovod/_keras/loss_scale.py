"""Scaling of the loss in Keras 3, whose optimizer decides whether a step is taken."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from horovod._keras.reducing_optimizer import ReducingOptimizer, share_state, wrapped_class
from horovod._keras.which import keras_of
from horovod.errors import UsageError

if TYPE_CHECKING:
    from horovod._keras.reducing_optimizer import Wrapping


def refuse_inner(optimizer: Any) -> None:
    """Raises if an optimizer holds a wrapped one.

    Raises:
        UsageError: it does.
    """
    if isinstance(getattr(optimizer, "inner_optimizer", None), ReducingOptimizer):
        raise UsageError(_SCALER_REFUSAL)


def with_loss_scale(optimizer: ReducingOptimizer) -> ReducingOptimizer:
    """Puts a LossScaleOptimizer between the reduction and the optimizer.

    Whether a step is taken is decided there by whether all gradients are finite, so it has to see
    the reduced ones, which are alike on all ranks.
    """
    if optimizer.wrapping.kind != "DistributedOptimizer":
        raise UsageError(
            f"hvd.{optimizer.wrapping.kind} with mixed_float16, which needs a LossScaleOptimizer "
            "that would skip different steps on different ranks: train in mixed_bfloat16, or "
            "compile with auto_scale_loss=False"
        )
    if optimizer.wrapping.shard_state:
        raise UsageError(
            "shard_state=True with mixed_float16, which needs a LossScaleOptimizer that decides by "
            "whole gradients: train in mixed_bfloat16, or compile with auto_scale_loss=False"
        )
    plain = share_state(optimizer, type(optimizer).plain_class)
    keras = keras_of(type(plain))
    scaler = keras.optimizers.LossScaleOptimizer(plain, name="loss_scale_optimizer")
    wrapping: Wrapping = optimizer.wrapping
    added = type(optimizer).added_class
    outer = share_state(scaler, wrapped_class(added, type(scaler), wrapping))
    type(outer)._has_local = type(optimizer)._has_local
    outer._reducer, outer._agg_helper = optimizer._reducer, optimizer._agg_helper
    wrapped: ReducingOptimizer = outer
    return wrapped


_SCALER_REFUSAL = (
    "a LossScaleOptimizer skips steps by the gradients of this rank alone if it holds a "
    "DistributedOptimizer; turn them around: "
    "hvd.DistributedOptimizer(keras.optimizers.LossScaleOptimizer(optimizer))"
)
_SCALER_MODULE = "keras.src.optimizers.loss_scale_optimizer"


def refuse_scaler(message: str = _SCALER_REFUSAL) -> None:
    """Raises if a plain LossScaleOptimizer calls: ranks would not reduce the same steps.

    Args:
        message: what the error says.
    """
    frame = sys._getframe(2)
    while frame is not None:
        if frame.f_globals.get("__name__") == _SCALER_MODULE:
            raise UsageError(message)
        frame = frame.f_back  # type: ignore[assignment]
