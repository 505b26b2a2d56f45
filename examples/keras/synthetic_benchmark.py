"""Measures how many images per second the ranks train, on random data.

    horovodrun -np 2 python examples/keras/synthetic_benchmark.py --model ResNet101

Each rank times ``--num-iters`` iterations of ``--num-batches-per-iter`` batches after a warm-up.
Compare the total with that of one rank to see what the communication costs. The weights are random,
so nothing is downloaded.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time

import numpy as np
import tensorflow as tf
from tensorflow import keras

import horovod.keras as hvd

MODELS = ("InceptionV3", "ResNet101", "VGG16")
SMALLEST_IMAGES = {"InceptionV3": 75, "ResNet101": 32, "VGG16": 32}


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=MODELS, default="ResNet101")
    parser.add_argument("--image-size", type=int, default=224, help="pixels in a row and a column")
    parser.add_argument("--num-classes", type=int, default=1000)
    parser.add_argument("--batch-size", type=int, default=32, help="images per rank and step")
    parser.add_argument("--num-warmup-batches", type=int, default=5)
    parser.add_argument("--num-batches-per-iter", type=int, default=5)
    parser.add_argument("--num-iters", type=int, default=5)
    parser.add_argument("--fp16-allreduce", action="store_true", help="send gradients in 16 bits")
    parser.add_argument("--smoke", action="store_true", help="a few tiny batches, to see it runs")
    args = parser.parse_args()
    if args.smoke:
        args.image_size = SMALLEST_IMAGES[args.model]
        args.batch_size, args.num_classes, args.num_warmup_batches = 1, 10, 1
        args.num_batches_per_iter, args.num_iters = 1, 2
    return args


def say(text: str) -> None:
    if hvd.rank() == 0:
        print(text, flush=True)


def spread(values: list[float]) -> str:
    """Mean and the interval that holds 95 % of normally distributed values."""
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.mean(values):.1f} +- {1.96 * deviation:.1f}"


def make_model(args: argparse.Namespace) -> keras.Model:
    shape = (args.image_size, args.image_size, 3)
    make = getattr(keras.applications, args.model)
    model = make(weights=None, input_shape=shape, classes=args.num_classes)
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.SGD(0.01 * hvd.size()),
        compression=hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none,
    )
    model.compile(optimizer, "sparse_categorical_crossentropy")
    return model


def main() -> None:
    args = parse_args()
    hvd.init()
    tf.config.threading.set_intra_op_parallelism_threads(
        max(1, (os.cpu_count() or 1) // hvd.local_size())
    )
    keras.utils.set_random_seed(1)

    model = make_model(args)
    draw = np.random.default_rng(hvd.rank())
    images = draw.random((args.batch_size, args.image_size, args.image_size, 3), np.float32)
    labels = draw.integers(args.num_classes, size=args.batch_size)
    dataset = tf.data.Dataset.from_tensors((images, labels)).cache().repeat()

    def train_batches(num_batches: int, *callbacks: keras.callbacks.Callback) -> None:
        model.fit(dataset, steps_per_epoch=num_batches, verbose=0, callbacks=list(callbacks))

    num_parameters = sum(int(np.prod(weight.shape)) for weight in model.trainable_weights)
    say(f"{args.model}: {num_parameters / 1e6:.1f} million parameters, {hvd.size()} rank(s)")
    train_batches(args.num_warmup_batches, hvd.callbacks.BroadcastGlobalVariablesCallback(0))
    rates: list[float] = []
    for iteration in range(args.num_iters):
        began = time.perf_counter()
        train_batches(args.num_batches_per_iter)
        seconds = time.perf_counter() - began
        rates.append(args.batch_size * args.num_batches_per_iter / seconds)
        say(f"iteration {iteration}: {rates[-1]:.1f} img/s per rank")

    # Every rank has its own clock: the total is the sum of what each of them measured.
    totals = hvd.allreduce(rates, name="rates", op=hvd.Sum).numpy().tolist()
    say(f"img/s per rank: {spread(rates)}")
    say(f"total img/s on {hvd.size()} rank(s): {spread(totals)}")


if __name__ == "__main__":
    main()
