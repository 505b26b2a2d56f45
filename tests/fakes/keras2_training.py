"""The small training job on Keras 2: tf_keras where it is installed, or TensorFlow's own Keras."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf
from keras_training import assert_close, batches

import horovod.keras as hvd

if importlib.util.find_spec("tf_keras"):
    import tf_keras as keras
else:
    import keras

if TYPE_CHECKING:
    from collections.abc import Callable

SIZE = 2
legacy = keras.optimizers.legacy
scaled = keras.mixed_precision.LossScaleOptimizer


class StepByTape(keras.Model):
    """Takes its gradients from a tape, as scripts do that write their own step."""

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compiled_loss(y, self(x, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"loss": loss}


class StepOfClipped(keras.Model):
    """Takes its gradients from the optimizer, and clips what it gets."""

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compiled_loss(y, self(x, training=True))
        name = "compute_gradients"
        compute = getattr(self.optimizer, name, None) or getattr(self.optimizer, f"_{name}")
        pairs = compute(loss, self.trainable_variables, tape=tape)
        gradients, norm = tf.clip_by_global_norm([g for g, _ in pairs], 0.1)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"loss": loss, "norm": norm}


class StepOfScaled(keras.Model):
    """Scales the loss by hand."""

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compiled_loss(y, self(x, training=True))
            high = self.optimizer.get_scaled_loss(loss)
        gradients = tape.gradient(high, self.trainable_variables)
        gradients = self.optimizer.get_unscaled_gradients(gradients)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"loss": loss}


@dataclass(frozen=True)
class Recipe:
    """How to train.

    Attributes:
        optimizer: makes the plain optimizer.
        wrapping: options of DistributedOptimizer; "groups" may be "layers".
        around: makes what is compiled of the wrapped optimizer.
        model: the class of the model.
        passes: batches per step.
        sums: whether gradients of the ranks are summed, not averaged.
        eager: whether there is no graph.
    """

    optimizer: Callable[[], Any]
    wrapping: dict[str, Any] = field(default_factory=dict)
    around: Callable[[Any], Any] = lambda optimizer: optimizer
    model: type = keras.Model
    passes: int = 1
    sums: bool = False
    eager: bool = False


AGGREGATION = {
    "backward_passes_per_step": 2,
    "average_aggregated_gradients": True,
    "sparse_as_dense": True,
}

FITS = {
    "new": Recipe(lambda: keras.optimizers.SGD(0.05, momentum=0.9)),
    "new, eager, clipped": Recipe(
        lambda: keras.optimizers.Adam(0.01, global_clipnorm=0.1), eager=True
    ),
    "new, sum in groups": Recipe(
        lambda: keras.optimizers.Adam(0.01), {"op": hvd.Sum, "groups": "layers"}, sums=True
    ),
    "new, averaged weights, dense tables": Recipe(
        lambda: keras.optimizers.SGD(0.05, use_ema=True, ema_overwrite_frequency=3),
        {"sparse_as_dense": True},
    ),
    "new, aggregation": Recipe(lambda: keras.optimizers.SGD(0.05), AGGREGATION, passes=2),
    "new, aggregation, step by tape, eager": Recipe(
        lambda: keras.optimizers.SGD(0.05),
        AGGREGATION,
        model=StepByTape,
        passes=2,
        eager=True,
    ),
    "new, step by tape": Recipe(lambda: keras.optimizers.Adam(0.01), model=StepByTape),
    "new, step of clipped": Recipe(lambda: keras.optimizers.SGD(0.5), model=StepOfClipped),
    "new, scaled": Recipe(lambda: scaled(keras.optimizers.SGD(0.05))),
    "new, scaled around": Recipe(lambda: keras.optimizers.SGD(0.05), around=scaled),
    "new, scaled around by hand": Recipe(
        lambda: keras.optimizers.SGD(0.05), around=scaled, model=StepOfScaled
    ),
    "new, scaled by hand": Recipe(lambda: scaled(keras.optimizers.SGD(0.05)), model=StepOfScaled),
    "legacy": Recipe(lambda: legacy.SGD(0.05, momentum=0.9)),
    "legacy, eager, clipped": Recipe(lambda: legacy.Adam(0.01, global_clipnorm=0.1), eager=True),
    "legacy, sum in groups": Recipe(
        lambda: legacy.Adam(0.01), {"op": hvd.Sum, "groups": 2}, sums=True
    ),
    "legacy, aggregation": Recipe(lambda: legacy.SGD(0.05), AGGREGATION, passes=2),
    "legacy, step by tape": Recipe(lambda: legacy.RMSprop(0.01), model=StepByTape),
    "legacy, step of clipped": Recipe(lambda: legacy.SGD(0.5), model=StepOfClipped),
    "legacy, scaled, aggregation": Recipe(lambda: scaled(legacy.SGD(0.05)), AGGREGATION, passes=2),
    "legacy, scaled around by hand": Recipe(
        lambda: legacy.SGD(0.05), around=scaled, model=StepOfScaled
    ),
}


def make_model(seed: int, kind: type) -> Any:
    """A table and two dense layers: words (batch, 3) to (batch, 2), with weights by the seed."""
    keras.backend.set_floatx("float64")
    words = keras.Input((3,), dtype="int32")
    hidden = keras.layers.Flatten()(keras.layers.Embedding(11, 4)(words))
    hidden = keras.layers.Dense(7, activation="tanh")(hidden)
    model = kind(words, keras.layers.Dense(2)(hidden))
    random = np.random.default_rng(seed)
    for weight in model.weights:
        weight.assign(random.normal(size=weight.shape) * 0.5)
    return model


def doubled(targets: Any, outputs: Any) -> Any:
    return 2.0 * keras.losses.mean_squared_error(targets, outputs)


def train(model: Any, optimizer: Any, recipe: Recipe, data: list[Any], *callbacks: Any) -> Any:
    model.compile(optimizer, doubled if recipe.sums else "mse", run_eagerly=recipe.eager)
    words, targets = (np.concatenate(part) for part in zip(*data, strict=True))
    return model.fit(
        words,
        targets,
        batch_size=len(data[0][0]),
        epochs=2,
        shuffle=False,
        verbose=0,
        callbacks=list(callbacks),
    ).history["loss"]


def on_a_rank(recipe: Recipe) -> tuple[list[np.ndarray], list[float]]:
    """Trains on this rank's rows; returns the weights and the averaged losses."""
    model = make_model(hvd.rank(), recipe.model)
    options = dict(recipe.wrapping)
    if options.get("groups") == "layers":
        options["groups"] = [model.layers[-2].weights, [model.layers[-1].kernel]]
    optimizer = recipe.around(hvd.DistributedOptimizer(recipe.optimizer(), **options))
    losses = train(
        model,
        optimizer,
        # The sum of two ranks' gradients is that of twice the mean.
        replace(recipe, sums=False),
        batches([hvd.rank()]),
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
    )
    return list(model.get_weights()), losses


def alone(recipe: Recipe) -> tuple[list[np.ndarray], list[float]]:
    """The same in one process, with the batches of all ranks and passes as one."""
    model = make_model(0, recipe.model)
    data = batches(list(range(SIZE)))
    joint = []
    for i in range(0, len(data), recipe.passes):
        parts = zip(*data[i : i + recipe.passes], strict=True)
        joint.append(tuple(np.concatenate(part) for part in parts))
    optimizer = recipe.around(recipe.optimizer())
    losses = train(model, optimizer, recipe, joint)
    return list(model.get_weights()), losses


def fits() -> list[str]:
    """Trains by every recipe on each of two ranks; returns the names of the right ones."""
    results = {name: on_a_rank(recipe) for name, recipe in FITS.items()}
    for weights, _ in results.values():
        assert_alike(weights)
    for place, (name, (weights, losses)) in enumerate(results.items()):
        if place % SIZE != hvd.rank():
            continue  # the other rank compares it
        expected, joint_losses = alone(FITS[name])
        assert_close(weights, expected, 1e-9)
        if FITS[name].passes == 1 and not FITS[name].sums:
            np.testing.assert_allclose(losses, joint_losses, rtol=1e-6)
    return list(results)


def assert_alike(state: list[np.ndarray]) -> None:
    """Compares something with what the other rank has."""
    flat = np.concatenate([np.ravel(value).astype(np.float64) for value in state])
    both = hvd.allgather(flat[np.newaxis]).numpy()
    np.testing.assert_array_equal(both[0], both[1])
