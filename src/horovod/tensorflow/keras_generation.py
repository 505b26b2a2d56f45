"""Which Keras something belongs to: ``keras`` of version 2 or 3, or ``tf_keras``, which is 2."""

from __future__ import annotations

import sys
from typing import Any

import tensorflow as tf

from horovod.errors import UsageError

ROOTS = ("keras", "tf_keras")
"""The packages that a Keras may lie in."""


def keras_of(kind: type) -> Any:
    """The package that a class, or one that it derives from, lies in; None if it is no Keras.

    Args:
        kind: of an optimizer, a layer, or another thing of Keras.
    """
    for base in kind.__mro__:
        root = base.__module__.partition(".")[0]
        if root in ROOTS and root in sys.modules:
            return sys.modules[root]
    return None


def keras_of_tensorflow() -> Any:
    """The package behind ``tf.keras``, which TF_USE_LEGACY_KERAS decides."""
    return keras_of(tf.keras.Model)


def generation_of(keras: Any) -> int:
    """The major version of a Keras."""
    return int(keras.__version__.partition(".")[0])


def is_layer(thing: Any) -> bool:
    """Whether something is a layer of any Keras."""
    keras = keras_of(type(thing))
    return keras is not None and isinstance(thing, keras.layers.Layer)


def checked_layers(local_layers: Any) -> list[Any]:
    """Returns the layers as a list.

    Args:
        local_layers: a Keras layer, a list of them, or None.

    Raises:
        UsageError: it is something else.
    """
    if local_layers is None:
        return []
    several = isinstance(local_layers, list | tuple | set)
    layers = list(local_layers) if several else [local_layers]
    for layer in layers:
        if not is_layer(layer):
            raise UsageError(f"local_layers={local_layers!r} is no Keras layer or list of layers")
    return layers


def kind_of(thing: Any) -> str:
    """The full name of the class of something, for messages."""
    return f"{type(thing).__module__}.{type(thing).__qualname__}"


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
    backend = keras.backend.backend()
    if backend != "tensorflow":
        raise ImportError(
            f"Horovod's Keras interface works with Keras on TensorFlow, but Keras runs on "
            f"{backend}: set KERAS_BACKEND=tensorflow before anything imports keras. "
            "With PyTorch, use horovod.torch in a training loop of your own"
        )
