"""Trains a small network on handwritten digits in a session of TensorFlow 1, alone or on ranks.

    python examples/tensorflow/digits_session.py
    horovodrun -np 2 python examples/tensorflow/digits_session.py

The lines that make it distributed are marked with "Horovod:". The data is the set of 1797 images
of 8 x 8 pixels that scikit-learn brings along, so nothing is downloaded. Started again, it goes on
from its last checkpoint; give more epochs, or another folder.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

import horovod.tensorflow as hvd

v1 = tf.compat.v1


def parse_args() -> argparse.Namespace:
    default_checkpoint = Path(tempfile.gettempdir()) / "checkpoints" / "digits_session"
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=32, help="images per rank and step")
    parser.add_argument("--lr", type=float, default=0.05, help="learning rate of one rank")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--checkpoint", type=Path, default=default_checkpoint, help="a folder")
    parser.add_argument("--smoke", action="store_true", help="two epochs, to see that it runs")
    args = parser.parse_args()
    if args.smoke:
        args.epochs = min(args.epochs, 2)
    return args


def load_data(seed: int) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """The same 80/20 split on all ranks, because the seed is the same."""
    digits = load_digits()
    images = digits.images[..., np.newaxis].astype(np.float32) / 16
    labels = digits.target.astype(np.int64)
    order = np.random.default_rng(seed).permutation(len(labels))
    train, test = order[len(order) // 5 :], order[: len(order) // 5]
    return (images[train], labels[train]), (images[test], labels[test])


def convolution(x: tf.Tensor, channels: int, name: str) -> tf.Tensor:
    with v1.variable_scope(name):
        kernel = v1.get_variable("kernel", [3, 3, x.shape[-1], channels])
        bias = v1.get_variable("bias", [channels], initializer=v1.zeros_initializer())
        return tf.nn.relu(tf.nn.conv2d(x, kernel, strides=1, padding="SAME") + bias)


def linear(x: tf.Tensor, width: int, name: str) -> tf.Tensor:
    with v1.variable_scope(name):
        kernel = v1.get_variable("kernel", [x.shape[-1], width])
        bias = v1.get_variable("bias", [width], initializer=v1.zeros_initializer())
        return x @ kernel + bias


def network(images: tf.Tensor, training: bool) -> tf.Tensor:
    """Two convolutions and two linear layers: images (batch, 8, 8, 1) to scores (batch, 10)."""
    with v1.variable_scope("network", reuse=v1.AUTO_REUSE):
        x = convolution(images, 16, "conv1")
        x = tf.nn.max_pool2d(convolution(x, 32, "conv2"), 2, 2, "VALID")
        x = tf.reshape(x, [-1, 4 * 4 * 32])
        if training:
            x = tf.nn.dropout(x, rate=0.5)
        return linear(tf.nn.relu(linear(x, 64, "fc1")), 10, "fc2")


def share_of_this_rank(data: tuple[Any, Any]) -> tf.data.Dataset:
    """Horovod: each rank looks at every size()-th image."""
    return tf.data.Dataset.from_tensor_slices(data).shard(hvd.size(), hvd.rank())


def is_right(scores: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.equal(tf.argmax(scores, axis=1), labels), tf.float32)


class TestAtTheEnd(v1.train.SessionRunHook):
    """Prints the accuracy on the test images when the training has ended."""

    def __init__(self, data: tuple[Any, Any]) -> None:
        self._data = data

    def begin(self) -> None:
        images, labels = (part[hvd.rank() :: hvd.size()] for part in self._data)
        num_right = tf.reduce_sum(is_right(network(tf.constant(images), False), labels))
        # Horovod: shares may differ by one image, so sum the counts, not the accuracies.
        self._num_right = hvd.allreduce(num_right, op=hvd.Sum, name="right")

    def end(self, session: Any) -> None:
        accuracy = session.run(self._num_right) / len(self._data[1])
        if hvd.rank() == 0:
            print(f"test accuracy: {accuracy:.2%} on {hvd.size()} rank(s)")


def main() -> None:
    args = parse_args()

    # Horovod: join the job. Without horovodrun this is a job of one rank.
    hvd.init()

    # Horovod: each rank has a GPU of its own, if there are any, and its share of the host's cores.
    config = v1.ConfigProto()
    config.gpu_options.visible_device_list = str(hvd.local_rank())
    config.intra_op_parallelism_threads = max(1, (os.cpu_count() or 1) // hvd.local_size())

    with tf.Graph().as_default():
        v1.set_random_seed(args.seed + hvd.rank())  # dropout differs between the ranks
        train_data, test_data = load_data(args.seed)
        batches = share_of_this_rank(train_data).shuffle(len(train_data[0])).repeat()
        batches = batches.batch(args.batch_size)
        images, labels = v1.data.make_one_shot_iterator(batches).get_next()
        scores = network(images, training=True)
        loss = tf.reduce_mean(
            tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=scores)
        )
        accuracy = tf.reduce_mean(is_right(scores, labels))

        # Horovod: a step sees size() times as many images, so it may go as much further ...
        steps_per_epoch = len(train_data[0]) // (args.batch_size * hvd.size())
        last_step = args.epochs * steps_per_epoch
        global_step = v1.train.get_or_create_global_step()
        rate = v1.train.cosine_decay(args.lr * hvd.size(), global_step, last_step)
        optimizer = v1.train.MomentumOptimizer(rate, momentum=0.9)
        # ... and the gradients are averaged over the ranks.
        optimizer = hvd.DistributedOptimizer(optimizer)
        with tf.control_dependencies([optimizer.minimize(loss, global_step=global_step)]):
            train_op = global_step.read_value()
        # Horovod: the numbers to print are averages over all ranks as well.
        metrics = [hvd.allreduce(loss, name="loss"), hvd.allreduce(accuracy, name="accuracy")]

        # Horovod: all ranks start as rank 0 does, which may have restored a checkpoint.
        hooks = [
            hvd.BroadcastGlobalVariablesHook(0),
            v1.train.StopAtStepHook(last_step=last_step),
            TestAtTheEnd(test_data),
        ]
        # Horovod: all ranks hold the same weights, so one of them saves them.
        folder = str(args.checkpoint) if hvd.rank() == 0 else None
        with v1.train.MonitoredTrainingSession(
            checkpoint_dir=folder, hooks=hooks, config=config, log_step_count_steps=None
        ) as session:
            measured: list[list[float]] = []
            while not session.should_stop():
                step, numbers = session.run([train_op, metrics])
                measured.append(numbers)
                if hvd.rank() == 0 and step % steps_per_epoch == 0:
                    mean_loss, mean_accuracy = np.mean(measured, axis=0)
                    print(
                        f"epoch {step // steps_per_epoch:2d}: loss {mean_loss:.4f}, "
                        f"training accuracy {mean_accuracy:.2%}"
                    )
                    measured.clear()


if __name__ == "__main__":
    main()
