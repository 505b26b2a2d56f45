"""Trains a small network on handwritten digits while ranks come and go, in one of two ways.

    horovodrun -np 2 --min-np 1 python examples/tensorflow/digits_elastic.py
    horovodrun -np 2 --min-np 1 python examples/tensorflow/digits_elastic.py --style function

"loops" is the simple way: two loops that go on where the job is after a change. "function" is that
of Horovod since 0.20: a function that begins anew, and a state that says where it goes on. The data
is the set of 1797 images of 8 x 8 pixels that scikit-learn brings along.
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
Data = tuple[np.ndarray, np.ndarray]


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--style", choices=["loops", "function"], default="loops")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=32, help="images per rank and step")
    parser.add_argument("--lr", type=float, default=0.05, help="learning rate of one rank")
    parser.add_argument("--seed", type=int, default=1)
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


def load_data(seed: int) -> tuple[Data, Data]:
    """The same 80/20 split on all ranks, because the seed is the same."""
    digits = load_digits()
    images = digits.images[..., np.newaxis].astype(np.float32) / 16
    order = np.random.default_rng(seed).permutation(len(images))
    train, test = order[len(order) // 5 :], order[: len(order) // 5]
    return (images[train], digits.target[train]), (images[test], digits.target[test])


def make_step(model: keras.Model, optimizer: keras.optimizers.Optimizer) -> Step:
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    # Horovod: what is compiled once serves any number of ranks.
    @tf.function(reduce_retracing=True)
    def step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(images, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    return step


def rate(args: argparse.Namespace, epoch: int) -> float:
    return args.lr * hvd.size() * (1 + np.cos(np.pi * epoch / args.epochs)) / 2


def report(epoch: int, loss: float) -> None:
    if hvd.rank() == 0:
        print(f"epoch {epoch + 1:2d}: loss {loss:.4f} on {hvd.size()} rank(s)")


def train_in_loops(
    args: argparse.Namespace,
    model: keras.Model,
    optimizer: keras.optimizers.Optimizer,
    data: Data,
) -> None:
    """Horovod: what has a state is given to the training; batches() has what is left."""
    training = hvd.elastic.Training(model=model, optimizer=optimizer)
    values = training.track(loss=0.0)
    step = make_step(model, optimizer)
    for epoch in training.epochs(args.epochs):
        optimizer.learning_rate = rate(args, epoch)
        for images, labels in training.batches(data, args.batch_size, seed=args.seed):
            # Horovod: ends silently if a rank is lost; the next batch comes from the last commit.
            with training.guard():
                values.loss = float(step(images, labels))
        report(epoch, values.loss)


def train_in_function(
    args: argparse.Namespace,
    model: keras.Model,
    optimizer: keras.optimizers.Optimizer,
    data: Data,
) -> None:
    """Horovod: the function begins anew after a change; the state says where."""
    images, labels = data
    step = make_step(model, optimizer)

    @hvd.elastic.run
    def train(state: hvd.elastic.TensorFlowKerasState) -> None:
        per_step = args.batch_size * hvd.size()
        while state.epoch < args.epochs:
            state.optimizer.learning_rate = rate(args, state.epoch)
            # Horovod: all ranks draw the same order. The state says how far in it they are, in
            # images, so it does not matter how many ranks there were.
            order = np.random.default_rng(args.seed + state.epoch).permutation(len(images))
            while state.num_seen + per_step <= len(order):
                mine = order[state.num_seen :][hvd.rank() : per_step : hvd.size()]
                state.loss = float(step(images[mine], labels[mine]))
                state.num_seen += per_step
                # Horovod: keep the state, and look whether ranks came or left.
                if state.num_seen // per_step % 10 == 0:
                    state.commit()
            report(state.epoch, state.loss)
            state.epoch, state.num_seen = state.epoch + 1, 0
            state.commit()

    train(hvd.elastic.TensorFlowKerasState(model, optimizer, epoch=0, num_seen=0, loss=0.0))


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
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(args.lr, momentum=0.9))
    train = train_in_loops if args.style == "loops" else train_in_function
    train(args, model, optimizer, train_data)

    scores = model(test_images[hvd.rank() :: hvd.size()], training=False)
    right = tf.argmax(scores, 1) == test_labels[hvd.rank() :: hvd.size()]
    num_right = hvd.allreduce(tf.reduce_sum(tf.cast(right, tf.int64)), op=hvd.Sum, name="right")
    if hvd.rank() == 0:
        accuracy = int(num_right) / len(test_labels)
        print(f"test accuracy: {accuracy:.2%} on {hvd.size()} rank(s)")


if __name__ == "__main__":
    main()
