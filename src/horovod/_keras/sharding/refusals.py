"""Refuses optimizers and options that do not go with ``shard_state``, before training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from horovod._keras.reducing_optimizer import public_class
from horovod._keras.which import generation_of, keras_of, kind_of
from horovod._train.compression import refuse_quantizing
from horovod.errors import UsageError

if TYPE_CHECKING:
    from horovod._keras.reducing_optimizer import Wrapping

# All that their steps compute is element by element.
_ELEMENTWISE = (
    "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "Ftrl", "Lion", "Nadam", "RMSprop", "SGD",
)  # fmt: skip


def check_sharding(optimizer: Any, wrapping: Wrapping, local_layers: Any) -> None:
    """Refuse what a rank with a share of the state could not do, or would do differently.

    Raises:
        UsageError: the optimizer or an option is such; says what to use.
    """
    keras = keras_of(type(optimizer))
    if keras is None:
        return  # another check says so
    if generation_of(keras) < 3:
        raise UsageError("shard_state=True needs Keras 3; with Keras 2, leave it out")
    if hasattr(optimizer, "inner_optimizer"):
        raise UsageError(
            "shard_state=True with a LossScaleOptimizer, which decides by whole gradients: train "
            "in mixed_bfloat16, or give the optimizer a fixed loss_scale_factor"
        )
    _check_class(optimizer, keras)
    refuse_quantizing(wrapping.settings.compression, "shard_state=True")
    for option, is_given, advice in (
        ("use_ema=True", optimizer.use_ema, "keep the average of the weights by a callback"),
        ("gradient_accumulation_steps", optimizer.gradient_accumulation_steps, "leave it out"),
        ("backward_passes_per_step", wrapping.passes > 1, "leave it out"),
        ("groups", wrapping.settings.groups is not None, "all gradients are one operation"),
        ("device_dense", bool(getattr(wrapping.settings, "device_dense", "")), "leave it out"),
        ("device_sparse", bool(getattr(wrapping.settings, "device_sparse", "")), "leave it out"),
        ("local_layers", bool(local_layers), "leave one of the two out"),
    ):
        if is_given:
            raise UsageError(f"shard_state=True does not go with {option}: {advice}")


def _check_class(optimizer: Any, keras: Any) -> None:
    known = [getattr(keras.optimizers, name) for name in _ELEMENTWISE]
    if public_class(type(optimizer)) not in known:
        raise UsageError(
            f"shard_state=True: {kind_of(optimizer)} may compute with whole variables, of which a "
            f"rank has a share: use one of {', '.join(_ELEMENTWISE)}, or leave shard_state out"
        )


def refuse_local() -> UsageError:
    """Return the error for gradients that are to stay on their rank."""
    return UsageError(
        "shard_state=True does not go with variables of which each rank has its own: leave "
        "shard_state out"
    )
