"""Names for what TensorFlow and Keras take and give; both have no types of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import keras
    import tensorflow as tf

TensorLike: TypeAlias = "tf.types.experimental.TensorLike"
Nested: TypeAlias = "TensorLike | Sequence[Nested] | Mapping[str, Nested]"  # see ``tf.nest``

# Of TensorFlow or of any Keras.
Variable: TypeAlias = "tf.Variable | keras.Variable"
Gradient: TypeAlias = "tf.Tensor | tf.IndexedSlices | None"  # None of what was not used
Pair: TypeAlias = "tuple[Gradient, Variable]"
Model: TypeAlias = "keras.Model"
Layers: TypeAlias = "keras.layers.Layer | Sequence[keras.layers.Layer] | None"
Optimizer: TypeAlias = "keras.optimizers.Optimizer"
V1Optimizer: TypeAlias = "tf.compat.v1.train.Optimizer"
Session: TypeAlias = "tf.compat.v1.Session"

# What Keras asks of optimizers and callbacks.
Loss: TypeAlias = "tf.Tensor | Callable[[], tf.Tensor]"
Variables: TypeAlias = "Sequence[Variable] | Callable[[], Sequence[Variable]]"
Logs: TypeAlias = "dict[str, float]"  # which callbacks may change
