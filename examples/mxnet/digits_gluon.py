"""Trains a small network on handwritten digits with MXNet's gluon: alone, or on several ranks.

    python examples/mxnet/digits_gluon.py
    horovodrun -np 2 python examples/mxnet/digits_gluon.py

The lines that make it distributed are marked with "Horovod:". The data is the set of 1797 images
of 8 x 8 pixels that scikit-learn brings along, so nothing is downloaded. MXNet needs Python 3.11 or
older: pip install "mxnet==1.9.1" "numpy==1.23.5" scikit-learn
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
from mxnet.gluon import nn
from sklearn.datasets import load_digits

import horovod.mxnet as hvd


def parse_args() -> argparse.Namespace:
    default_checkpoint = Path(tempfile.gettempdir()) / "checkpoints" / "digits.params"
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


def network() -> nn.HybridSequential:
    """Two convolutions and two linear layers: images (batch, 1, 8, 8) to scores (batch, 10)."""
    net = nn.HybridSequential()
    net.add(nn.Conv2D(16, kernel_size=3, padding=1, activation="relu"))
    net.add(nn.Conv2D(32, kernel_size=3, padding=1, activation="relu"), nn.MaxPool2D(2))
    net.add(nn.Dropout(0.5), nn.Dense(64, activation="relu"), nn.Dense(10))
    return net


def load_data(seed: int) -> tuple[Any, Any, Any, Any]:
    """The same 80/20 split on all ranks, because the seed is the same."""
    digits = load_digits()
    images = digits.images[:, np.newaxis].astype("float32") / 16
    labels = digits.target.astype("float32")
    order = np.random.default_rng(seed).permutation(len(labels))
    train, test = order[len(order) // 5 :], order[: len(order) // 5]
    return images[train], labels[train], images[test], labels[test]


def average(value: float, name: str) -> float:
    """Horovod: a number of this rank becomes its average over all ranks."""
    return float(hvd.allreduce(mx.nd.array([value]), name=name).asscalar())


def train(net: Any, trainer: Any, batches: Any) -> float:
    """Goes once through this rank's share of the data; returns the loss of all ranks."""
    criterion = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    losses = []
    for images, labels in batches:
        with mx.autograd.record():
            loss = criterion(net(images), labels)
        loss.backward()
        trainer.step(len(labels))  # Horovod: the gradients are averaged before the update.
        losses.append(loss.mean())
    return average(float(mx.nd.stack(*losses).mean().asscalar()), "loss")


def main() -> None:
    args = parse_args()

    # Horovod: join the job. Without horovodrun this is a job of one rank.
    hvd.init()
    is_first = hvd.rank() == 0

    mx.random.seed(args.seed + hvd.rank())  # dropout differs between the ranks
    images, labels, test_images, test_labels = load_data(args.seed)

    # Horovod: each rank looks at every size()-th image, and all at the same number of them.
    length = len(labels) // hvd.size() * hvd.size()
    mine = mx.gluon.data.ArrayDataset(
        images[hvd.rank() : length : hvd.size()], labels[hvd.rank() : length : hvd.size()]
    )
    batches = mx.gluon.data.DataLoader(mine, args.batch_size, shuffle=True)

    net = network()
    net.initialize(mx.init.Xavier())
    net.hybridize()

    # Horovod: start everywhere as rank 0 does.
    hvd.broadcast_parameters(net.collect_params(), root_rank=0)

    # Horovod: a step sees size() times as many images, so it may go as much further, and the
    # trainer averages the gradients over the ranks.
    steps = args.epochs * (-(-len(mine) // args.batch_size))
    schedule = mx.lr_scheduler.CosineScheduler(steps, base_lr=args.lr * hvd.size())
    options = {
        "learning_rate": args.lr * hvd.size(),
        "momentum": 0.9,
        "lr_scheduler": schedule,
    }
    trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", options)

    for epoch in range(args.epochs):
        loss = train(net, trainer, batches)
        if is_first:
            print(f"epoch {epoch + 1:2d}: loss {loss:.4f}")
            # Horovod: all ranks hold the same weights, so one of them saves them.
            args.checkpoint.parent.mkdir(parents=True, exist_ok=True)
            net.save_parameters(str(args.checkpoint))

    share = slice(hvd.rank(), None, hvd.size())
    scores = net(mx.nd.array(test_images[share])).argmax(axis=1)
    num_right = (scores == mx.nd.array(test_labels[share])).sum()
    # Horovod: shares may differ by one image, so sum the counts instead of averaging accuracies.
    accuracy = hvd.allreduce(num_right, op=hvd.Sum, name="right").asscalar() / len(test_labels)
    if is_first:
        print(f"test accuracy: {accuracy:.2%} on {hvd.size()} rank(s)")
    mx.nd.waitall()  # Horovod: nothing is in flight when this rank leaves the job.


if __name__ == "__main__":
    main()
