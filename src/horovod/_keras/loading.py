"""Loading a model so that its training goes on with all ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras

from horovod._keras.distributing import distribute
from horovod._keras.optimizer import ReducingOptimizer
from horovod.errors import UsageError
from horovod.tensorflow.compression import Compression

if TYPE_CHECKING:
    from collections.abc import Iterable


def load_model(
    filepath: Any,
    custom_optimizers: Iterable[type] | None = None,
    custom_objects: dict[str, Any] | None = None,
    compression: Any = Compression.none,
    legacy_opts: bool = False,
) -> Any:
    """Loads a model whose optimizer becomes a ``DistributedOptimizer``, with its saved state.

    Args:
        filepath: what ``model.save`` wrote.
        custom_optimizers: classes of optimizers that Keras does not know.
        custom_objects: further classes and functions by name, as for ``keras.models.load_model``;
            they count more than ``custom_optimizers``.
        compression: how gradients travel.
        legacy_opts: Keras 3 has no legacy optimizers, so this must be False.

    Raises:
        UsageError: ``legacy_opts`` is True.

    Example:
        >>> model = hvd.load_model("checkpoint.keras")
        >>> model.fit(images, labels)
    """
    if legacy_opts:
        raise UsageError("legacy_opts=True: Keras 3 has no legacy optimizers")
    known = {kind.__name__: kind for kind in custom_optimizers or ()}
    model = keras.models.load_model(filepath, custom_objects={**known, **(custom_objects or {})})
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None and not isinstance(optimizer, ReducingOptimizer):
        model.optimizer = distribute(optimizer, compression=compression)
        # What Keras chose for the plain optimizer; XLA cannot compile this one.
        model.jit_compile = False
    return model
