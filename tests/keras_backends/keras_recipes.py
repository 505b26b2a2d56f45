"""Trainings with ``fit`` of Keras on any backend, on ranks and in one process with all data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

import horovod.keras as hvd

if TYPE_CHECKING:
    from collections.abc import Callable

ROWS = 4
STEPS = 6
AGGREGATION = {
    "backward_passes_per_step": 2,
    "average_aggregated_gradients": True,
    "sparse_as_dense": True,
}


@dataclass(frozen=True)
class Recipe:
    """How to train.

    Attributes:
        optimizer: makes the plain optimizer.
        wrapping: options of DistributedOptimizer; "groups" may be "layers".
        passes: batches per step.
        scale: of the loss of the process that has all data.
        model: makes the model of the given layers.
        norm: whether a layer normalizes by the batches of all ranks.
        tolerance: relative, of the trained weights.
    """

    optimizer: Callable[[], Any] = field(default=lambda: keras.optimizers.SGD(0.05, momentum=0.9))
    wrapping: dict[str, Any] = field(default_factory=dict)
    passes: int = 1
    scale: float = 1.0
    model: Any = keras.Sequential
    norm: bool = False
    tolerance: float = 1e-9


class Clipping(keras.Sequential):
    """A model whose step changes the gradients between the backward pass and ``apply``."""

    in_place = False

    def train_step(self, *args: Any) -> Any:
        return STEPS_OF_BACKENDS[keras.backend.backend()](self, *args)


class ClippingInPlace(Clipping):
    """The same, in the memory of the gradients where the backend allows it."""

    in_place = True


def _step_of_tensorflow(model: Any, data: Any) -> Any:
    import tensorflow as tf

    x, y = data
    with tf.GradientTape() as tape:
        loss = model.compute_loss(x, y, model(x, training=True))
    gradients = tape.gradient(loss, model.trainable_variables)
    model.optimizer.apply([g * 0.5 for g in map(tf.convert_to_tensor, gradients)],
                          model.trainable_variables)  # fmt: skip
    return {"loss": loss}


def _step_of_torch(model: Any, data: Any) -> Any:
    import torch

    x, y = data[:2]
    model.zero_grad()
    loss = model.compute_loss(x, y, model(x, training=True))
    loss.backward()
    gradients = [variable.value.grad for variable in model.trainable_variables]
    with torch.no_grad():
        if model.in_place:
            for gradient in gradients:
                gradient *= 0.5
        else:
            gradients = [gradient * 0.5 for gradient in gradients]
        model.optimizer.apply(gradients, model.trainable_variables)
    return {"loss": loss}


def _step_of_jax(model: Any, state: Any, data: Any) -> Any:
    import jax

    trainable, others, optimizer_variables, metrics = state
    x, y = data[:2]

    def loss_of(trainable: Any, others: Any) -> Any:
        predicted, others = model.stateless_call(trainable, others, x, training=True)
        return model.compute_loss(x, y, predicted), others

    (loss, others), gradients = jax.value_and_grad(loss_of, has_aux=True)(trainable, others)
    gradients = [gradient * 0.5 for gradient in gradients]
    trainable, optimizer_variables = model.optimizer.stateless_apply(
        optimizer_variables, gradients, trainable
    )
    return {"loss": loss}, (trainable, others, optimizer_variables, metrics)


STEPS_OF_BACKENDS = {
    "tensorflow": _step_of_tensorflow,
    "torch": _step_of_torch,
    "jax": _step_of_jax,
}

FITS = {
    "plain": Recipe(),
    "adam": Recipe(lambda: keras.optimizers.Adam(0.01)),
    "sum": Recipe(wrapping={"op": hvd.Sum}, scale=2.0),
    "predivided": Recipe(wrapping={"gradient_predivide_factor": 2.0}),
    "groups of layers": Recipe(wrapping={"groups": "layers"}),
    "two groups": Recipe(wrapping={"groups": 2}),
    "clipped": Recipe(lambda: keras.optimizers.SGD(0.05, global_clipnorm=0.1)),
    "averaged weights": Recipe(
        lambda: keras.optimizers.SGD(0.05, use_ema=True, ema_overwrite_frequency=3)
    ),
    "aggregation": Recipe(wrapping=AGGREGATION, passes=2),
    "accumulation of keras": Recipe(
        lambda: keras.optimizers.SGD(0.05, gradient_accumulation_steps=2), passes=2
    ),
    "scaled loss": Recipe(
        lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.05), 1024.0)
    ),
    "own step": Recipe(model=Clipping),
    "own step, in place": Recipe(model=ClippingInPlace),
    "16 bits": Recipe(wrapping={"compression": hvd.Compression.fp16}, tolerance=1e-2),
    # The bias in front of it has no gradient but rounding of float32, which varies by processor.
    "batch normalization": Recipe(norm=True, tolerance=1e-6),
}


def make_model(seed: int, recipe: Recipe, norm: Any = None) -> keras.Model:
    """A table and two dense layers: words (batch, 3) to (batch, 2), with weights by the seed."""
    keras.config.set_floatx("float64")
    model = recipe.model(
        [
            keras.Input((3,), dtype="int32"),
            keras.layers.Embedding(11, 4),
            keras.layers.Flatten(),
            keras.layers.Dense(7, activation="tanh"),
            *([] if norm is None else [norm()]),
            keras.layers.Dense(2),
        ]
    )
    random = np.random.default_rng(seed)
    for weight in model.trainable_weights:
        weight.assign(random.normal(size=weight.shape) * 0.5)
    return model


def rows_of(ranks: list[int], first: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Words and targets of some batches: of each, the rows of some ranks one after the other."""
    words = np.concatenate(
        [
            np.random.default_rng([step, rank]).integers(11, size=(ROWS, 3))
            for step in range(first, first + count)
            for rank in ranks
        ]
    )
    targets = np.stack([words.sum(axis=1), words[:, 0] - words[:, 1]], axis=1) / 10.0
    return words.astype(np.int32), targets


def fit(model: keras.Model, ranks: list[int], passes: int, callbacks: list[Any]) -> Any:
    """Train on the rows of some ranks, as large batches; return the history."""
    words, targets = rows_of(ranks, 0, STEPS * passes)
    return model.fit(
        words, targets, batch_size=ROWS * len(ranks), epochs=2, shuffle=False, verbose=0,
        validation_data=rows_of(ranks, 100, 2), validation_batch_size=ROWS, callbacks=callbacks,
    ).history  # fmt: skip


def fit_on_a_rank(recipe: Recipe) -> tuple[list[np.ndarray], Any]:
    """Train on this rank's rows; return the weights and the history."""
    model = make_model(hvd.rank(), recipe, hvd.SyncBatchNormalization if recipe.norm else None)
    options = dict(recipe.wrapping)
    if options.get("groups") == "layers":
        dense = [layer for layer in model.layers if layer.weights][1:]
        options["groups"] = [dense[0].weights, [dense[1].kernel]]
    if keras.backend.backend() == "tensorflow" and recipe.passes > 1:
        options.setdefault("sparse_as_dense", True)
    model.compile(hvd.DistributedOptimizer(recipe.optimizer(), **options), "mse")
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
    ]
    history = fit(model, [hvd.rank()], recipe.passes, callbacks)
    return model.get_weights(), history


def fit_alone(recipe: Recipe) -> tuple[list[np.ndarray], Any]:
    """Train on the rows of all ranks without Horovod; return the weights and the history.

    Several passes become one batch, unless the optimizer of Keras adds them up.
    """
    norm = keras.layers.BatchNormalization if recipe.norm else None
    model = make_model(0, recipe, norm)
    optimizer = recipe.optimizer()
    sums = getattr(optimizer, "gradient_accumulation_steps", None)
    model.compile(optimizer, loss=lambda y, p: recipe.scale * keras.losses.mean_squared_error(y, p))
    ranks = list(range(hvd.size()))
    if recipe.passes == 1 or sums:
        history = fit(model, ranks, recipe.passes, [])
        return model.get_weights(), history
    words, targets = rows_of(ranks, 0, STEPS * recipe.passes)
    rows = ROWS * len(ranks) * recipe.passes
    model.fit(words, targets, batch_size=rows, epochs=2, shuffle=False, verbose=0)
    return model.get_weights(), {}


def assert_equal_on_all_ranks(name: str, weights: list[np.ndarray]) -> None:
    """Fails if the ranks have different weights; collective."""
    mine = np.concatenate([np.ravel(weight) for weight in weights])
    everyones = np.asarray(hvd.allgather(mine[None]))
    np.testing.assert_array_equal(everyones[0], everyones[-1], err_msg=name)


def assert_alike(name: str, found: Any, expected: Any, tolerance: float) -> None:
    """Fails with the name of the recipe and the largest difference."""
    if keras.backend.backend() == "torch":
        tolerance = max(tolerance, 1e-6)  # Keras computes the loss there with factors of float32
    for index, (mine, theirs) in enumerate(zip(found, expected, strict=True)):
        np.testing.assert_allclose(
            mine, theirs, rtol=tolerance, atol=tolerance, err_msg=f"{name}: weight {index}"
        )
