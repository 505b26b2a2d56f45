"""Trains a small network on handwritten digits, in a loop of one's own with a gradient tape.

    python examples/tensorflow/digits_tape.py
    horovodrun -np 2 python examples/tensorflow/digits_tape.py

The lines that make it distributed are marked with "Horovod:". The data is the set of 1797 images
of 8 x 8 pixels that scikit-learn brings along, so nothing is downloaded.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits
from tensorflow import keras

import horovod.tensorflow as hvd


def parse_args() -> argparse.Namespace:
    default_checkpoint = Path(tempfile.gettempdir()) / "checkpoints" / "digits_tape.weights.h5"
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=32, help="images per rank and step")
    parser.add_argument("--lr", type=float, default=0.05, help="learning rate of one rank")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--checkpoint", type=Path, default=default_checkpoint)
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


def main() -> None:
    args = parse_args()

    # Horovod: join the job. Without horovodrun this is a job of one rank.
    hvd.init()

    # Horovod: the ranks of a host share its cores, and only one of them talks.
    tf.config.threading.set_intra_op_parallelism_threads(
        max(1, (os.cpu_count() or 1) // hvd.local_size())
    )
    is_first = hvd.rank() == 0

    keras.utils.set_random_seed(args.seed + hvd.rank())  # dropout differs between the ranks
    train_data, (test_images, test_labels) = load_data(args.seed)

    # Horovod: each rank draws its own share of the images, and as many as the others.
    num_images = len(train_data[0]) // hvd.size()
    shares = tf.data.Dataset.from_tensor_slices(train_data).shard(hvd.size(), hvd.rank())
    batches = shares.take(num_images).shuffle(num_images).batch(args.batch_size)

    # Horovod: a step sees size() times as many images, so it may go as much further.
    model = make_network()
    optimizer = keras.optimizers.SGD(args.lr * hvd.size(), momentum=0.9)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    # Horovod: start everywhere as rank 0 does.
    optimizer.build(model.trainable_variables)
    hvd.broadcast_variables(model.weights, root_rank=0)
    hvd.broadcast_variables(optimizer.variables, root_rank=0)

    @tf.function
    def step(images: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            scores = model(images, training=True)
            loss = loss_of(labels, scores)
        # Horovod: the gradients are averaged over the ranks.
        tape = hvd.DistributedGradientTape(tape)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss, tf.reduce_sum(tf.cast(tf.argmax(scores, 1) == labels, tf.float32))

    for epoch in range(args.epochs):
        optimizer.learning_rate = (
            args.lr * hvd.size() * (1 + np.cos(np.pi * epoch / args.epochs)) / 2
        )
        total_loss, num_right = 0.0, 0.0
        for images, labels in batches:
            loss, right = step(images, labels)
            total_loss += float(loss) * len(labels)
            num_right += float(right)
        # Horovod: a number of this rank becomes its average over all ranks.
        sums = hvd.allreduce(tf.constant([total_loss, num_right]), name="metrics") / num_images
        if is_first:
            loss, accuracy = sums.numpy()
            print(f"epoch {epoch + 1:2d}: loss {loss:.4f}, training accuracy {accuracy:.2%}")
            # Horovod: all ranks hold the same weights, so one of them saves them.
            args.checkpoint.parent.mkdir(parents=True, exist_ok=True)
            model.save_weights(args.checkpoint)

    # Horovod: each rank looks at its share of the test images; sum up what is right.
    scores = model(test_images[hvd.rank() :: hvd.size()], training=False)
    right = tf.argmax(scores, 1) == test_labels[hvd.rank() :: hvd.size()]
    num_right = hvd.allreduce(tf.reduce_sum(tf.cast(right, tf.int64)), op=hvd.Sum, name="right")
    if is_first:
        accuracy = int(num_right) / len(test_labels)
        print(f"test accuracy: {accuracy:.2%} on {hvd.size()} rank(s)")


if __name__ == "__main__":
    main()
