"""Trains a small network on handwritten digits with ``model.fit`` while ranks come and go.

    python examples/keras/digits_elastic.py
    horovodrun -np 2 python examples/keras/digits_elastic.py

The lines that make it elastic are marked with "Horovod:"; digits_fit.py is the same without them.
The data is the set of 1797 images of 8 x 8 pixels that scikit-learn brings along, so nothing is
downloaded.
"""

from __future__ import annotations

import argparse
import os

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits
from tensorflow import keras

import horovod.keras as hvd


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=32, help="images per rank and step")
    parser.add_argument("--lr", type=float, default=0.05, help="learning rate of one rank")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--batches-per-commit", type=int, default=10)
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


def report(state: hvd.elastic.KerasState) -> keras.callbacks.Callback:
    """Keras counts its epochs anew after a change, the state does not."""
    return keras.callbacks.LambdaCallback(
        on_epoch_end=lambda _, logs: print(
            f"epoch {state.epoch:2d}: loss {logs['loss']:.4f}, training accuracy "
            f"{logs['accuracy']:.2%} on {hvd.size()} rank(s)"
        )
    )


# Horovod: called again after each change, when all ranks have the same state. Rank and size may be
# others then, so they are asked for in here.
@hvd.elastic.run
def train(
    state: hvd.elastic.KerasState, data: tuple[np.ndarray, np.ndarray], args: argparse.Namespace
) -> None:
    # Horovod: each rank has its own share of the images, and as many as the others.
    num_images = len(data[0]) // hvd.size()
    images, labels = (part[hvd.rank() :: hvd.size()][:num_images] for part in data)
    state.optimizer.learning_rate = args.lr * hvd.size()
    callbacks = [
        hvd.callbacks.MetricAverageCallback(),
        # Horovod: an epoch that was interrupted consists of its remaining batches only.
        hvd.elastic.UpdateBatchStateCallback(state),
        hvd.elastic.UpdateEpochStateCallback(state),
        # Horovod: keep the state, and look whether ranks came or left.
        hvd.elastic.CommitStateCallback(state, args.batches_per_commit),
    ]
    if hvd.rank() == 0:
        callbacks.append(report(state))
    state.model.fit(
        images,
        labels,
        batch_size=args.batch_size,
        epochs=args.epochs - state.epoch,
        callbacks=callbacks,
        verbose=0,
    )


def main() -> None:
    args = parse_args()

    # Horovod: join the job. A rank that comes later builds its model while the others train.
    hvd.init()
    tf.config.threading.set_intra_op_parallelism_threads(
        max(1, (os.cpu_count() or 1) // hvd.local_size())
    )
    keras.utils.set_random_seed(args.seed + hvd.rank())  # dropout differs between the ranks
    train_data, (test_images, test_labels) = load_data(args.seed)

    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(args.lr, momentum=0.9))
    model = make_network()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"])
    # Horovod: what the ranks have in common, and what a rank that comes later is sent.
    train(hvd.elastic.KerasState(model, epoch=0, batch=0), train_data, args)

    scores = model.predict(test_images[hvd.rank() :: hvd.size()], verbose=0)
    right = scores.argmax(1) == test_labels[hvd.rank() :: hvd.size()]
    num_right = hvd.allreduce(np.int64(right.sum()), name="right", op=hvd.Sum)
    if hvd.rank() == 0:
        accuracy = int(num_right) / len(test_labels)
        print(f"test accuracy: {accuracy:.2%} on {hvd.size()} rank(s)")


if __name__ == "__main__":
    main()
