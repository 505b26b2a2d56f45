"""Trains a small network on handwritten digits while ranks come and go, with a gradient tape.

    python examples/tensorflow/digits_elastic.py
    horovodrun -np 2 python examples/tensorflow/digits_elastic.py

The lines that make it elastic are marked with "Horovod:"; digits_tape.py is the same without them.
The data is the set of 1797 images of 8 x 8 pixels that scikit-learn brings along, so nothing is
downloaded.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits
from tensorflow import keras

import horovod.tensorflow as hvd

Step = Callable[[np.ndarray, np.ndarray], tf.Tensor]


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=32, help="images per rank and step")
    parser.add_argument("--lr", type=float, default=0.05, help="learning rate of one rank")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps-per-commit", type=int, default=10)
    parser.add_argument("--smoke", action="store_true", help="two epochs, to see that it runs")
    args = parser.parse_args()
    if args.smoke:
        args.epochs = min(args.epochs, 2)
    return args


def make_network() -> keras.Model:
    """Two convolutions and two dense layers: images (batch, 8, 8, 1) to scores (batch, 10)."""
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(16, 3, padding="same", activation="relu"),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.MaxPool2D(2),
            keras.layers.Flatten(),
            keras.layers.Dropout(0.5),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10),
        ]
    )


def load_data(seed: int) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """The same 80/20 split on all ranks, because the seed is the same."""
    digits = load_digits()
    images = digits.images[..., np.newaxis].astype(np.float32) / 16
    order = np.random.default_rng(seed).permutation(len(images))
    train, test = order[len(order) // 5 :], order[: len(order) // 5]
    return (images[train], digits.target[train]), (images[test], digits.target[test])


def make_step(model: keras.Model, optimizer: keras.optimizers.Optimizer) -> Step:
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    # Horovod: what is compiled once serves any number of ranks.
    @tf.function
    def step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(images, training=True))
        tape = hvd.DistributedGradientTape(tape)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    return step


# Horovod: called again after each change, when all ranks have the same state. Rank and size may be
# others then, so they are asked for in here.
@hvd.elastic.run
def train(
    state: hvd.elastic.TensorFlowKerasState,
    step: Step,
    data: tuple[np.ndarray, np.ndarray],
    args: argparse.Namespace,
) -> None:
    images, labels = data
    per_step = args.batch_size * hvd.size()
    while state.epoch < args.epochs:
        state.optimizer.learning_rate = (
            args.lr * hvd.size() * (1 + np.cos(np.pi * state.epoch / args.epochs)) / 2
        )
        # Horovod: all ranks draw the same order. The state says how far in it they are, in images,
        # so it does not matter how many ranks there were.
        order = np.random.default_rng(args.seed + state.epoch).permutation(len(images))
        loss, num_steps = tf.constant(0.0), 0
        while state.num_seen + per_step <= len(order):
            mine = order[state.num_seen :][hvd.rank() : per_step : hvd.size()]
            loss = step(images[mine], labels[mine])
            state.num_seen += per_step
            num_steps += 1
            # Horovod: keep the state, and look whether ranks came or left.
            if num_steps % args.steps_per_commit == 0:
                state.commit()
        mean = hvd.allreduce(loss, name="loss")
        if hvd.rank() == 0:
            print(f"epoch {state.epoch + 1:2d}: loss {float(mean):.4f} on {hvd.size()} rank(s)")
        state.epoch, state.num_seen = state.epoch + 1, 0


def main() -> None:
    args = parse_args()

    # Horovod: join the job. A rank that comes later builds its model while the others train.
    hvd.init()
    tf.config.threading.set_intra_op_parallelism_threads(
        max(1, (os.cpu_count() or 1) // hvd.local_size())
    )
    keras.utils.set_random_seed(args.seed + hvd.rank())  # dropout differs between the ranks
    train_data, (test_images, test_labels) = load_data(args.seed)

    model = make_network()
    optimizer = keras.optimizers.SGD(args.lr, momentum=0.9)
    # Horovod: what the ranks have in common, and what a rank that comes later is sent.
    state = hvd.elastic.TensorFlowKerasState(model, optimizer, epoch=0, num_seen=0)
    train(state, make_step(model, optimizer), train_data, args)

    scores = model(test_images[hvd.rank() :: hvd.size()], training=False)
    right = tf.argmax(scores, 1) == test_labels[hvd.rank() :: hvd.size()]
    num_right = hvd.allreduce(tf.reduce_sum(tf.cast(right, tf.int64)), op=hvd.Sum, name="right")
    if hvd.rank() == 0:
        accuracy = int(num_right) / len(test_labels)
        print(f"test accuracy: {accuracy:.2%} on {hvd.size()} rank(s)")


if __name__ == "__main__":
    main()
