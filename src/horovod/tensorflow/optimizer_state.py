"""The state of optimizers of both generations: variables, learning rate and momentum."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from horovod._keras.optimizers import innermost

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def build(optimizer: Any, variables: Sequence[Any]) -> None:
    """Makes the variables of an optimizer, which Keras would make when it traces the first step.

    Args:
        optimizer: of any generation; one that is built is left alone.
        variables: what it will train.
    """
    if hasattr(optimizer, "_create_all_weights"):  # legacy
        optimizer._create_all_weights(variables)
    elif not getattr(optimizer, "built", False):
        optimizer.build(variables)


def variables_of(optimizer: Any) -> list[Any]:
    """All variables of an optimizer, in the same order on all ranks.

    Args:
        optimizer: that has been built.
    """
    held = optimizer.variables
    found = list(held() if callable(held) else held)
    # Keras 3 has these among the others.
    inner = innermost(optimizer)
    scale = getattr(optimizer, "_loss_scale", None)
    more = [getattr(inner, "learning_rate", None)]
    more += [getattr(scale, name, None) for name in ("current_loss_scale", "counter")]
    known = {id(variable) for variable in found}
    return found + [v for v in more if isinstance(v, tf.Variable) and id(v) not in known]


def number(value: Any) -> float:
    """The value of a variable of any Keras, or of a number."""
    if not tf.executing_eagerly() and isinstance(value, tf.Variable):
        # In a graph of version 1, where Keras 2 keeps values in its session.
        return float(tf.compat.v1.keras.backend.get_value(value))
    return float(tf.get_static_value(tf.convert_to_tensor(value)))


def multiply(variable: Any, factor: float) -> None:
    """Multiplies the value of a variable of any Keras."""
    if tf.executing_eagerly():
        variable.assign(variable * factor)
    else:
        backend = tf.compat.v1.keras.backend
        backend.set_value(variable, backend.get_value(variable) * factor)


def gathered_momentum(optimizer: Any, variables: Iterable[Any]) -> list[Any]:
    """The variables that momentum multiplies, where what is added to them holds the rate.

    Args:
        optimizer: of any generation.
        variables: what it trains.
    """
    if not number(getattr(optimizer, "momentum", 0.0)):
        return []
    if hasattr(optimizer, "get_slot"):  # legacy
        if "momentum" not in optimizer.get_slot_names():
            return []
        slots = [optimizer.get_slot(variable, "momentum") for variable in variables]
        return [slot for slot in slots if slot is not None]
    gathered = getattr(optimizer, "momentums", None) or getattr(optimizer, "_momentums", None)
    return [variable for variable in gathered or [] if variable is not None]
