"""A small training job for the tests of tapes and Keras optimizers, on processes and alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

import horovod.tensorflow as hvd
import horovod.tensorflow.keras as keras_hvd

if TYPE_CHECKING:
    from collections.abc import Callable

BATCH_ROWS = 4
STEPS = 8


@dataclass(frozen=True)
class Recipe:
    """How to train.

    Attributes:
        optimizer: makes the plain optimizer.
        wrapping: options of the tape or of DistributedOptimizer; "groups" may be "layers".
        passes: batches per step.
        sums: whether gradients of the ranks are summed, not averaged.
        eager: whether there is no graph.
        tolerance: relative, of the trained weights.
    """

    optimizer: Callable[[], Any] = field(default=lambda: keras.optimizers.SGD(0.05, momentum=0.9))
    wrapping: dict[str, Any] = field(default_factory=dict)
    passes: int = 1
    sums: bool = False
    eager: bool = False
    tolerance: float = 1e-9


AGGREGATION = {
    "backward_passes_per_step": 2,
    "average_aggregated_gradients": True,
    "sparse_as_dense": True,
}

TAPES = {
    "plain": Recipe(),
    "eager": Recipe(eager=True),
    "sum": Recipe(wrapping={"op": hvd.Sum}, sums=True),
    "predivided": Recipe(wrapping={"gradient_predivide_factor": 2.0}),
    "two groups": Recipe(wrapping={"groups": 2}),
    "groups of layers": Recipe(wrapping={"groups": "layers"}),
    "groups, eager": Recipe(wrapping={"groups": 2}, eager=True),
    "dense tables": Recipe(wrapping={"sparse_as_dense": True}),
    "16 bits": Recipe(wrapping={"compression": hvd.Compression.fp16}, tolerance=1e-2),
}

FITS = {
    "plain": Recipe(),
    "eager": Recipe(eager=True),
    "adam": Recipe(lambda: keras.optimizers.Adam(0.01)),
    "sum": Recipe(wrapping={"op": hvd.Sum}, sums=True),
    "groups of layers": Recipe(wrapping={"groups": "layers"}),
    "dense tables": Recipe(wrapping={"sparse_as_dense": True}),
    "clipped": Recipe(lambda: keras.optimizers.SGD(0.05, global_clipnorm=0.1)),
    "averaged weights": Recipe(
        lambda: keras.optimizers.SGD(0.05, use_ema=True, ema_overwrite_frequency=3)
    ),
    "aggregation": Recipe(wrapping=AGGREGATION, passes=2),
    "aggregation, eager": Recipe(wrapping=AGGREGATION, passes=2, eager=True),
    "accumulation of keras": Recipe(
        lambda: keras.optimizers.SGD(0.05, gradient_accumulation_steps=2),
        {"sparse_as_dense": True},
        passes=2,
    ),
    "scaled loss": Recipe(
        lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.05), 1024.0)
    ),
}


def make_model(seed: int) -> keras.Model:
    """A table and two dense layers: words (batch, 3) to (batch, 2), with weights by the seed."""
    keras.config.set_floatx("float64")
    model = keras.Sequential(
        [
            keras.Input((3,), dtype="int32"),
            keras.layers.Embedding(11, 4),
            keras.layers.Flatten(),
            keras.layers.Dense(7, activation="tanh"),
            keras.layers.Dense(2),
        ]
    )
    random = np.random.default_rng(seed)
    for weight in model.weights:
        weight.assign(random.normal(size=weight.shape) * 0.5)
    return model


def batches(ranks: list[int], first_step: int = 0, steps: int = STEPS) -> list[Any]:
    """For each step the rows of some ranks, one after the other."""
    made = []
    for step in range(first_step, first_step + steps):
        words = np.concatenate(
            [np.random.default_rng([step, r]).integers(11, size=(BATCH_ROWS, 3)) for r in ranks]
        )
        targets = np.stack([words.sum(axis=1), words[:, 0] - words[:, 1]], axis=1) / 10.0
        made.append((words.astype(np.int32), targets))
    return made


def options_of(recipe: Recipe, model: keras.Model) -> dict[str, Any]:
    options = dict(recipe.wrapping)
    if options.get("groups") == "layers":
        options["groups"] = [model.layers[2].weights, [model.layers[3].kernel]]
    return options


def train_by_tape(model: keras.Model, recipe: Recipe, data: list[Any], wrap: Any) -> None:
    optimizer = recipe.optimizer()
    optimizer.build(model.trainable_variables)

    def step(words: Any, targets: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(words) - targets) ** 2) * (2.0 if recipe.sums else 1.0)
        gradients = wrap(tape).gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    run = step if recipe.eager else tf.function(step)
    for words, targets in data:
        run(tf.constant(words), tf.constant(targets))


def tape_on_a_rank(recipe: Recipe) -> list[np.ndarray]:
    """Trains on this rank's rows; returns the weights."""
    model = make_model(hvd.rank())
    hvd.broadcast_variables(model.weights, 0)
    options = options_of(recipe, model)
    wrap = lambda tape: hvd.DistributedGradientTape(tape, **options)  # noqa: E731
    # The sum of two ranks' gradients is that of twice the mean.
    alike = Recipe(recipe.optimizer, eager=recipe.eager)
    train_by_tape(model, alike, batches([hvd.rank()]), wrap)
    return list(model.get_weights())


def tape_alone(size: int, recipe: Recipe) -> list[np.ndarray]:
    model = make_model(0)
    train_by_tape(model, recipe, batches(list(range(size))), lambda tape: tape)
    return list(model.get_weights())


class Doubled(keras.losses.MeanSquaredError):
    """Twice the loss."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return 2.0 * super().__call__(*args, **kwargs)


def train_by_fit(
    model: keras.Model, optimizer: Any, recipe: Recipe, data: list[Any], *callbacks: Any
) -> dict[str, list[float]]:
    rows = len(data[0][0])
    loss = Doubled() if recipe.sums else keras.losses.MeanSquaredError()
    model.compile(optimizer, loss, run_eagerly=recipe.eager, auto_scale_loss=False)
    words, targets = (np.concatenate(part) for part in zip(*data, strict=True))
    logs: dict[str, list[float]] = model.fit(
        words,
        targets,
        batch_size=rows,
        epochs=2,
        shuffle=False,
        verbose=0,
        callbacks=list(callbacks),
    ).history
    return logs


def fit_on_a_rank(recipe: Recipe) -> tuple[list[np.ndarray], list[float]]:
    """Trains on this rank's rows; returns the weights and the losses of all ranks."""
    model = make_model(hvd.rank())
    optimizer = keras_hvd.DistributedOptimizer(recipe.optimizer(), **options_of(recipe, model))
    alike = Recipe(recipe.optimizer, eager=recipe.eager)
    logs = train_by_fit(
        model,
        optimizer,
        alike,
        batches([hvd.rank()]),
        keras_hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        keras_hvd.callbacks.MetricAverageCallback(),
    )
    return list(model.get_weights()), logs["loss"]


def fit_alone(size: int, recipe: Recipe) -> tuple[list[np.ndarray], list[float]]:
    """The same in one process, with the batches of all ranks and passes as one."""
    model = make_model(0)
    data = batches(list(range(size)))
    joint = []
    for i in range(0, len(data), recipe.passes):
        parts = zip(*data[i : i + recipe.passes], strict=True)
        joint.append(tuple(np.concatenate(part) for part in parts))
    optimizer = recipe.optimizer()
    if getattr(optimizer, "gradient_accumulation_steps", None):
        optimizer = keras.optimizers.SGD(0.05)
    alike = Recipe(recipe.optimizer, eager=recipe.eager, sums=recipe.sums)
    logs = train_by_fit(model, optimizer, alike, joint)
    return list(model.get_weights()), [
        loss / (2.0 if recipe.sums else 1.0) for loss in logs["loss"]
    ]


def assert_close(mine: list[np.ndarray], theirs: list[np.ndarray], tolerance: float) -> None:
    for one, other in zip(mine, theirs, strict=True):
        scale = np.abs(other).max()
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance * scale)
