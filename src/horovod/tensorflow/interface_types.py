"""Names for what TensorFlow and Keras take and give; both have no types of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import keras
    import tensorflow as tf

TensorLike: TypeAlias = "tf.types.experimental.TensorLike"
"""What ``tf.convert_to_tensor`` takes."""

Nested: TypeAlias = "TensorLike | Sequence[Nested] | Mapping[str, Nested]"
"""A structure of ``tf.nest``."""

Variable: TypeAlias = "tf.Variable | keras.Variable"
"""A variable of TensorFlow or of any Keras."""

Gradient: TypeAlias = "tf.Tensor | tf.IndexedSlices | None"
"""A dense or sparse gradient; None of what was not used."""

Pair: TypeAlias = "tuple[Gradient, Variable]"
"""A gradient and its variable, as optimizers take them."""

Optimizer: TypeAlias = "keras.optimizers.Optimizer"
"""An optimizer of any Keras."""

V1Optimizer: TypeAlias = "tf.compat.v1.train.Optimizer"
"""An optimizer of TensorFlow 1."""

Model: TypeAlias = "keras.Model"
"""A model of any Keras."""

Layers: TypeAlias = "keras.layers.Layer | Sequence[keras.layers.Layer] | None"
"""One layer, several, or none."""

Loss: TypeAlias = "tf.Tensor | Callable[[], tf.Tensor]"
"""What optimizers minimize."""

Variables: TypeAlias = "Sequence[Variable] | Callable[[], Sequence[Variable]]"
"""What an optimizer computes the gradients of."""

Session: TypeAlias = "tf.compat.v1.Session"
"""A session of TensorFlow 1."""

Logs: TypeAlias = "dict[str, float]"
"""Metrics, as Keras gives them to callbacks, which may change them."""
