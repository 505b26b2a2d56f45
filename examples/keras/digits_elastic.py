"""Trains a small network on handwritten digits with ``model.fit`` while ranks come and go.

    horovodrun -np 2 --min-np 1 python examples/keras/digits_elastic.py
    horovodrun -np 2 --min-np 1 python examples/keras/digits_elastic.py --style function

"callback" is the simple way, with Keras on TensorFlow: ``fit`` goes on where the job is after a
change. "function" is that of Horovod since 0.20, with Keras on any backend: a function that begins
anew, and a state that says where it goes on. The data is the set of 1797 images of 8 x 8 pixels
that scikit-learn brings along.
"""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

import keras
import numpy as np
from sklearn.datasets import load_digits

import horovod.keras as hvd

if TYPE_CHECKING:
    from collections.abc import Callable

Data = tuple[np.ndarray, np.ndarray]


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--style", choices=["callback", "function"], default="callback")
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


def report(number_of: Callable[[int], int]) -> keras.callbacks.Callback:
    """Says how each epoch was, with its number, on the rank that is the first one then."""

    def on_epoch_end(epoch: int, logs: dict[str, float]) -> None:
        if hvd.rank() == 0:
            print(
                f"epoch {number_of(epoch):2d}: loss {logs['loss']:.4f}, training accuracy "
                f"{logs['accuracy']:.2%} on {hvd.size()} rank(s)"
            )

    return keras.callbacks.LambdaCallback(on_epoch_end=on_epoch_end)


def train_with_callback(args: argparse.Namespace, model: keras.Model, data: Data) -> None:
    """Horovod: the training is a callback, and makes the data set; fit begins where the job is."""
    training = hvd.elastic.Training(model)
    model.fit(
        training.dataset(data, args.batch_size, seed=args.seed),
        initial_epoch=training.epoch,
        epochs=args.epochs,
        shuffle=False,  # the data set is
        callbacks=[
            hvd.callbacks.MetricAverageCallback(),
            report(lambda epoch: epoch + 1),
            training,
        ],
        verbose=0,
    )


def train_in_function(args: argparse.Namespace, model: keras.Model, data: Data) -> None:
    """Horovod: the function begins anew after a change; the state says where."""

    @hvd.elastic.run
    def train(state: hvd.elastic.KerasState) -> None:
        # Horovod: each rank has its own share of the images, and as many as the others.
        num_images = len(data[0]) // hvd.size()
        images, labels = (part[hvd.rank() :: hvd.size()][:num_images] for part in data)
        state.model.fit(
            images,
            labels,
            batch_size=args.batch_size,
            epochs=args.epochs - state.epoch,
            callbacks=[
                hvd.callbacks.MetricAverageCallback(),
                # Horovod: an epoch that was interrupted consists of its remaining batches only.
                hvd.elastic.UpdateBatchStateCallback(state),
                hvd.elastic.UpdateEpochStateCallback(state),
                # Keras counts its epochs anew after a change, the state does not.
                report(lambda _: state.epoch),
                # Horovod: keep the state, and look whether ranks came or left.
                hvd.elastic.CommitStateCallback(state, batches_per_commit=10),
            ],
            verbose=0,
        )

    train(hvd.elastic.KerasState(model, epoch=0, batch=0))


def share_cores() -> None:
    """Let TensorFlow and PyTorch compute with this rank's share of the host's cores."""
    num_threads = max(1, (os.cpu_count() or 1) // hvd.local_size())
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(num_threads)
    elif keras.backend.backend() == "torch":
        import torch

        torch.set_num_threads(num_threads)


def main() -> None:
    args = parse_args()

    # Horovod: join the job. A rank that comes later builds its model while the others train.
    hvd.init()
    share_cores()
    keras.utils.set_random_seed(args.seed + hvd.rank())  # dropout differs between the ranks
    train_data, (test_images, test_labels) = load_data(args.seed)

    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(args.lr, momentum=0.9))
    model = make_network()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"])
    train = train_with_callback if args.style == "callback" else train_in_function
    train(args, model, train_data)

    scores = model.predict(test_images[hvd.rank() :: hvd.size()], verbose=0)
    right = scores.argmax(1) == test_labels[hvd.rank() :: hvd.size()]
    num_right = hvd.allreduce(np.int64(right.sum()), name="right", op=hvd.Sum)
    if hvd.rank() == 0:
        accuracy = int(num_right) / len(test_labels)
        print(f"test accuracy: {accuracy:.2%} on {hvd.size()} rank(s)")


if __name__ == "__main__":
    main()
