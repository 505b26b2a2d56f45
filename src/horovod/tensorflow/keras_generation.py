"""Keras on TensorFlow, of either generation; see :mod:`horovod._keras.which`."""

from __future__ import annotations

import sys
from typing import Any

import tensorflow as tf

from horovod._keras.which import (
    backend_of,
    checked_layers,
    generation_of,
    keras_of,
    kind_of,
)
from horovod.errors import UsageError

__all__ = [
    "check_optimizer",
    "checked_layers",
    "generation_of",
    "keras_of",
    "keras_of_tensorflow",
    "kind_of",
    "refuse_other_backends",
]


def keras_of_tensorflow() -> Any:
    """The package behind ``tf.keras``, which TF_USE_LEGACY_KERAS decides."""
    return keras_of(tf.keras.Model)


def check_optimizer(optimizer: Any) -> Any:
    """Returns the Keras of an optimizer.

    Raises:
        UsageError: it is no optimizer, or one that cannot be wrapped.
        ImportError: its Keras does not run on TensorFlow.
    """
    keras = keras_of(type(optimizer))
    if keras is None or not hasattr(optimizer, "apply_gradients"):
        raise UsageError(f"{kind_of(optimizer)} is no optimizer of Keras")
    _refuse_other_backend(keras)
    return keras


def refuse_other_backends() -> None:
    """Fails early if the Keras that is in use does not run on TensorFlow.

    Raises:
        ImportError: it runs on something else.
    """
    if "tf_keras" not in sys.modules:
        _refuse_other_backend(keras_of_tensorflow())


def _refuse_other_backend(keras: Any) -> None:
    backend = backend_of(keras)
    if backend != "tensorflow":
        raise ImportError(
            f"horovod.tensorflow works with Keras on TensorFlow, but Keras runs on {backend}: "
            "import horovod.keras, which works with Keras on JAX and PyTorch too, or set "
            "KERAS_BACKEND=tensorflow before anything imports keras"
        )
