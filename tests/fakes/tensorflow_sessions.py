"""A small training job in sessions of tf.compat.v1, and the same in one process."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

import horovod.tensorflow as hvd

if TYPE_CHECKING:
    from collections.abc import Callable

v1 = tf.compat.v1

BATCH_ROWS = 6
STEPS = 5


@dataclass(frozen=True)
class Recipe:
    """How to train.

    Attributes:
        optimizer: makes the plain optimizer.
        passes: backward passes per step.
        averages: whether the gradients of the passes are averaged.
        wrapping: more options of DistributedOptimizer.
        words: whether the model looks its inputs up in a table, which has sparse gradients.
    """

    optimizer: Callable[[], Any] = field(default=lambda: v1.train.GradientDescentOptimizer(0.02))
    passes: int = 1
    averages: bool = False
    wrapping: dict[str, Any] = field(default_factory=dict)
    words: bool = False


RECIPES = {
    "plain": Recipe(),
    "adam": Recipe(lambda: v1.train.AdamOptimizer(0.02)),
    "momentum in groups": Recipe(
        lambda: v1.train.MomentumOptimizer(0.02, 0.9),
        wrapping={"groups": 2, "gradient_predivide_factor": 3.0},
    ),
    "three passes": Recipe(lambda: v1.train.AdamOptimizer(0.02), passes=3),
    "mean of two passes": Recipe(passes=2, averages=True),
    "words": Recipe(words=True),
    "words as dense ones": Recipe(passes=2, words=True, wrapping={"sparse_as_dense": True}),
}


def batch(rank: int, step: int) -> tuple[Any, Any]:
    """What a rank looks at in one pass: whole numbers from 0 to 9, and what to make of them."""
    x = np.random.default_rng(1000 * step + rank).integers(0, 10, (BATCH_ROWS, 3))
    return x, np.sin(x.sum(axis=1, keepdims=True) / 5.0)


def build(seed: int, words: bool = False) -> tuple[Any, Any, Any]:
    """A model in the default graph: placeholders of a batch, and the loss."""
    numbers = np.random.default_rng(seed)

    def variable(name: str, *shape: int) -> Any:
        initial = tf.constant(numbers.normal(size=shape) * 0.4)
        return v1.get_variable(name, initializer=initial)

    x = v1.placeholder(tf.int64, [None, 3])
    y = v1.placeholder(tf.float64, [None, 1])
    if words:
        inputs = tf.reshape(tf.nn.embedding_lookup(variable("table", 10, 2), x), [-1, 6])
    else:
        inputs = tf.reshape(tf.one_hot(x, 2, dtype=tf.float64) + 0.1, [-1, 6])
    hidden = tf.tanh(inputs @ variable("kernel", 6, 4) + variable("bias", 4))
    return x, y, tf.reduce_mean(tf.square(hidden @ variable("out", 4, 1) - y))


def train_in_session(recipe: Recipe) -> tuple[list[Any], int]:
    """Trains on this rank's data; returns the weights and the global step."""
    with tf.Graph().as_default():
        x, y, loss = build(hvd.rank(), recipe.words)
        global_step = v1.train.get_or_create_global_step()
        optimizer = hvd.DistributedOptimizer(
            recipe.optimizer(),
            backward_passes_per_step=recipe.passes,
            average_aggregated_gradients=recipe.averages,
            **recipe.wrapping,
        )
        train_op = optimizer.minimize(loss, global_step=global_step)
        hooks = [hvd.BroadcastGlobalVariablesHook(0)]
        with v1.train.MonitoredTrainingSession(hooks=hooks) as session:
            for step in range(STEPS * recipe.passes):
                images, labels = batch(hvd.rank(), step)
                session.run(train_op, {x: images, y: labels})
            weights, count = session.run([v1.trainable_variables(), global_step])
            return weights, int(count)


def train_alone(num_ranks: int, recipe: Recipe) -> list[Any]:
    """Trains in one process on the data of all ranks; returns the weights."""
    with tf.Graph().as_default(), v1.Session() as session:
        x, y, loss = build(0, recipe.words)
        optimizer = recipe.optimizer()
        pairs = optimizer.compute_gradients(loss)
        grads = [tf.convert_to_tensor(grad) for grad, _ in pairs]
        fed = [v1.placeholder(tf.float64, grad.shape) for grad in grads]
        step_op = optimizer.apply_gradients(
            [(grad, var) for grad, (_, var) in zip(fed, pairs, strict=True)]
        )
        session.run(v1.global_variables_initializer())
        for step in range(STEPS):
            totals: list[Any] = [0.0] * len(grads)
            for index in range(recipe.passes):
                parts = [batch(rank, step * recipe.passes + index) for rank in range(num_ranks)]
                images, labels = (np.concatenate(part) for part in zip(*parts, strict=True))
                found = session.run(grads, {x: images, y: labels})
                divisor = recipe.passes if recipe.averages else 1
                totals = [old + new / divisor for old, new in zip(totals, found, strict=True)]
            session.run(step_op, dict(zip(fed, totals, strict=True)))
        weights: list[Any] = session.run(v1.trainable_variables())
        return weights


def compare_as_version_1(names: list[str]) -> dict[str, tuple[list[Any], list[Any]]]:
    """Trains by recipes in a process where TensorFlow 2 behaves as TensorFlow 1.

    Variables have no handles then, and branches of graphs are made of other operations.

    Returns:
        By name the weights of all ranks' sessions, and those of one process.
    """
    v1.disable_v2_behavior()
    hvd.init()
    found = {}
    for name in names:
        recipe = RECIPES[name]
        found[name] = (train_in_session(recipe)[0], train_alone(hvd.size(), recipe))
    hvd.shutdown()
    return found
