"""Which Keras something belongs to: ``keras`` of version 2 or 3, or ``tf_keras``, which is 2."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from horovod._settings.config import inherited_environment
from horovod.errors import UsageError

ROOTS = ("keras", "tf_keras")
"""The packages that a Keras may lie in."""

BACKENDS = ("tensorflow", "jax", "torch")
"""The backends of Keras that Horovod works with, by the names that Keras gives them."""


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


def generation_of(keras: Any) -> int:
    """The major version of a Keras."""
    return int(keras.__version__.partition(".")[0])


def backend_of(keras: Any) -> str:
    """Return the name of the backend of a Keras; Keras 2 has TensorFlow alone."""
    return str(keras.backend.backend()) if generation_of(keras) >= 3 else "tensorflow"


def backend_in_use() -> str:
    """Return the name of the backend of the Keras that this process uses.

    Keras is imported if nothing has imported it yet. TensorFlow is not, unless it is the backend.

    Raises:
        ImportError: Horovod does not work with this backend.
    """
    if "keras" not in sys.modules:
        # Either means Keras 2, beside which no other Keras is to be loaded.
        if "tf_keras" in sys.modules or inherited_environment().get("TF_USE_LEGACY_KERAS") in (
            "1", "true", "True",
        ):  # fmt: skip
            return "tensorflow"
        try:
            importlib.import_module("keras")
        except ModuleNotFoundError as error:
            if error.name != "keras":  # of a backend that is not installed
                raise
            return "tensorflow"  # whose import says what is missing
    backend = backend_of(sys.modules["keras"])
    if backend not in BACKENDS and "tf_keras" not in sys.modules:
        raise ImportError(
            "Horovod works with Keras on TensorFlow, JAX and PyTorch, but Keras runs on "
            f"{backend}: set KERAS_BACKEND to one of these before anything imports keras"
        )
    return backend if backend in BACKENDS else "tensorflow"


def keras_of_callbacks() -> Any:
    """Return the Keras whose callbacks those of Horovod derive from.

    That is ``tf.keras`` if TensorFlow is loaded, which TF_USE_LEGACY_KERAS decides.
    """
    tensorflow: Any = sys.modules.get("tensorflow")
    return importlib.import_module("keras") if tensorflow is None else tensorflow.keras


def keras_in_use() -> Any:
    """Return the package of that Keras."""
    return keras_of(keras_of_callbacks().Model)


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
