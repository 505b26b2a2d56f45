"""Tensors of TensorFlow as values of ``hvd.log``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from horovod._train.logged.call import accept_values, check_one_element
from horovod.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable


def take(name: str, value: Any) -> float | Callable[[], float] | None:
    """Return the number in a tensor, or what waits for its device; None for what is no tensor."""
    if isinstance(value, tf.Variable):
        value = value.read_value()
    if not isinstance(value, tf.Tensor):
        return None
    if not hasattr(value, "numpy"):
        raise UsageError(
            f"hvd.log: {name} has no value while TensorFlow builds a graph; return it from the "
            "tf.function, or fetch it from the session, and log that"
        )
    if value.dtype.is_complex:
        raise UsageError(f"hvd.log: {name} is complex: log its real part, or its magnitude")
    check_one_element(name, int(tf.size(value)), value.shape)

    def read() -> float:
        return float(value.numpy().item())

    return read if "GPU" in value.device else read()


accept_values(take)
