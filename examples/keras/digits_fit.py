"""Trains a small network on handwritten digits with ``model.fit``.

    python examples/keras/digits_fit.py
    horovodrun -np 2 python examples/keras/digits_fit.py
    KERAS_BACKEND=jax horovodrun -np 2 python examples/keras/digits_fit.py

The lines that make it distributed are marked with "Horovod:". The data is the set of 1797 images
of 8 x 8 pixels that scikit-learn brings along, so nothing is downloaded.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

import keras
import numpy as np
from sklearn.datasets import load_digits

import horovod.keras as hvd


def parse_args() -> argparse.Namespace:
    default_checkpoint = Path(tempfile.gettempdir()) / "checkpoints" / "digits.keras"
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=32, help="images per rank and step")
    parser.add_argument("--lr", type=float, default=0.05, help="learning rate of one rank")
    parser.add_argument("--warmup-epochs", type=int, default=2, help="until the rate is reached")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--checkpoint", type=Path, default=default_checkpoint)
    parser.add_argument("--smoke", action="store_true", help="two epochs, to see that it runs")
    args = parser.parse_args()
    if args.smoke:
        args.epochs = min(args.epochs, 2)
        args.warmup_epochs = min(args.warmup_epochs, 1)
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


def make_callbacks(args: argparse.Namespace) -> list[keras.callbacks.Callback]:
    def cosine(epoch: float) -> float:
        share = (epoch - args.warmup_epochs) / max(1, args.epochs - args.warmup_epochs)
        return (1 + np.cos(np.pi * share)) / 2

    lr = args.lr * hvd.size()
    callbacks = [
        # Horovod: start everywhere as rank 0 does.
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        # Horovod: average the metrics over the ranks.
        hvd.callbacks.MetricAverageCallback(),
        # Horovod: raise the rate from that of one rank to that of all, then let it fall.
        hvd.callbacks.LearningRateWarmupCallback(lr, args.warmup_epochs),
        hvd.callbacks.LearningRateScheduleCallback(lr, cosine, start_epoch=args.warmup_epochs),
    ]
    # Horovod: all ranks hold the same weights, so one of them speaks and saves them.
    if hvd.rank() == 0:
        args.checkpoint.parent.mkdir(parents=True, exist_ok=True)
        callbacks += [
            keras.callbacks.LambdaCallback(on_epoch_end=report),
            keras.callbacks.ModelCheckpoint(str(args.checkpoint)),
        ]
    return callbacks


def report(epoch: int, logs: dict[str, float]) -> None:
    loss, accuracy = logs["loss"], logs["accuracy"]
    print(f"epoch {epoch + 1:2d}: loss {loss:.4f}, training accuracy {accuracy:.2%}")


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

    # Horovod: join the job. Without horovodrun this is a job of one rank.
    hvd.init()

    # Horovod: the ranks of a host share its cores.
    share_cores()
    keras.utils.set_random_seed(args.seed + hvd.rank())  # dropout differs between the ranks
    (images, labels), (test_images, test_labels) = load_data(args.seed)

    # Horovod: each rank has its own share of the images, and as many as the others.
    num_images = len(images) // hvd.size()
    images, labels = (part[hvd.rank() :: hvd.size()][:num_images] for part in (images, labels))

    # Horovod: a step sees size() times as many images, so it may go as much further; and the
    # gradients are averaged over the ranks.
    optimizer = keras.optimizers.SGD(args.lr * hvd.size(), momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer)

    model = make_network()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"])
    model.fit(
        images,
        labels,
        batch_size=args.batch_size,
        epochs=args.epochs,
        callbacks=make_callbacks(args),
        verbose=0,
    )

    # Horovod: each rank looks at its share of the test images; shares may differ by one image, so
    # sum the counts instead of averaging accuracies.
    scores = model.predict(test_images[hvd.rank() :: hvd.size()], verbose=0)
    right = scores.argmax(1) == test_labels[hvd.rank() :: hvd.size()]
    num_right = hvd.allreduce(np.int64(right.sum()), name="right", op=hvd.Sum)
    if hvd.rank() == 0:
        accuracy = int(num_right) / len(test_labels)
        print(f"test accuracy: {accuracy:.2%} on {hvd.size()} rank(s)")


if __name__ == "__main__":
    main()
