"""The three kinds of optimizers that Keras has, for tests that hold for all of them."""

from __future__ import annotations

from typing import Any, NamedTuple

import keras
import tf_keras


def output(_: Any, y: Any) -> Any:
    """A loss whose gradient by the weight of a linear model is 1."""
    return y


class Kind(NamedTuple):
    """Optimizers, and the Keras that they belong to."""

    of: Any
    optimizers: Any

    def linear(self, optimizer: Any, **options: Any) -> Any:
        """A model of one weight, 0 at first; the gradient of its loss is 1."""
        layer = self.of.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
        model = self.of.Sequential([self.of.Input((1,)), layer])
        model.compile(optimizer, output, **options)
        return model

    def scaling(self, optimizer: Any) -> Any:
        """A LossScaleOptimizer around an optimizer."""
        module = self.of.optimizers if self.of is keras else self.of.mixed_precision
        return module.LossScaleOptimizer(optimizer)


NEWEST = Kind(keras, keras.optimizers)
NEW = Kind(tf_keras, tf_keras.optimizers)
LEGACY = Kind(tf_keras, tf_keras.optimizers.legacy)
KINDS = {"keras3": NEWEST, "keras2": NEW, "legacy": LEGACY}
