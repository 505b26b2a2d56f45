"""Trains a small network on handwritten digits with MXNet's Module: alone, or on several ranks.

    python examples/mxnet/digits_module.py
    horovodrun -np 2 python examples/mxnet/digits_module.py

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
from sklearn.datasets import load_digits

import horovod.mxnet as hvd


def parse_args() -> argparse.Namespace:
    default_checkpoint = Path(tempfile.gettempdir()) / "checkpoints" / "digits_module"
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=32, help="images per rank and step")
    parser.add_argument("--lr", type=float, default=0.05, help="learning rate of one rank")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--checkpoint", type=Path, default=default_checkpoint, help="a prefix")
    parser.add_argument("--smoke", action="store_true", help="two epochs, to see that it runs")
    args = parser.parse_args()
    if args.smoke:
        args.epochs = min(args.epochs, 2)
    return args


def network() -> mx.sym.Symbol:
    """Two convolutions and two linear layers: images (batch, 1, 8, 8) to scores (batch, 10)."""
    x = mx.sym.Variable("data")
    for number, channels in enumerate((16, 32)):
        x = mx.sym.Convolution(x, kernel=(3, 3), pad=(1, 1), num_filter=channels, name=f"c{number}")
        x = mx.sym.Activation(x, "relu")
    x = mx.sym.Pooling(x, kernel=(2, 2), stride=(2, 2), pool_type="max")
    x = mx.sym.Activation(mx.sym.FullyConnected(x, num_hidden=64, name="fc0"), "relu")
    return mx.sym.SoftmaxOutput(mx.sym.FullyConnected(x, num_hidden=10, name="fc1"), name="softmax")


def load_data(seed: int) -> tuple[Any, Any, Any, Any]:
    """The same 80/20 split on all ranks, because the seed is the same."""
    digits = load_digits()
    images = digits.images[:, np.newaxis].astype("float32") / 16
    labels = digits.target.astype("float32")
    order = np.random.default_rng(seed).permutation(len(labels))
    train, test = order[len(order) // 5 :], order[: len(order) // 5]
    return images[train], labels[train], images[test], labels[test]


def main() -> None:
    args = parse_args()

    # Horovod: join the job. Without horovodrun this is a job of one rank.
    hvd.init()
    is_first = hvd.rank() == 0

    images, labels, test_images, test_labels = load_data(args.seed)
    # Horovod: each rank looks at every size()-th image, and all at the same number of them.
    length = len(labels) // hvd.size() * hvd.size()
    mine = slice(hvd.rank(), length, hvd.size())
    batches = mx.io.NDArrayIter(images[mine], labels[mine], args.batch_size, shuffle=True)

    module = mx.mod.Module(network())
    module.bind(data_shapes=batches.provide_data, label_shapes=batches.provide_label)
    module.init_params(mx.init.Xavier())

    # Horovod: start everywhere as rank 0 does.
    arguments, others = module.get_params()
    hvd.broadcast_parameters(arguments, root_rank=0)
    hvd.broadcast_parameters(others, root_rank=0)
    module.set_params(arguments, others)

    # Horovod: a step sees size() times as many images, so it may go as much further ...
    optimizer = mx.optimizer.create(
        "sgd",
        learning_rate=args.lr * hvd.size(),
        momentum=0.9,
        rescale_grad=1.0 / args.batch_size,
    )
    # ... and the gradients are averaged over the ranks.
    optimizer = hvd.DistributedOptimizer(optimizer)
    module.init_optimizer(kvstore=None, optimizer=optimizer)

    metric = mx.metric.Accuracy()
    for epoch in range(args.epochs):
        batches.reset()
        metric.reset()
        for batch in batches:
            module.forward_backward(batch)
            module.update()
            module.update_metric(metric, batch.label)
        # Horovod: the number to print is the average over all ranks.
        accuracy = hvd.allreduce(mx.nd.array([metric.get()[1]]), name="accuracy").asscalar()
        if is_first:
            print(f"epoch {epoch + 1:2d}: training accuracy {accuracy:.2%}")
            # Horovod: all ranks hold the same weights, so one of them saves them.
            args.checkpoint.parent.mkdir(parents=True, exist_ok=True)
            module.save_checkpoint(str(args.checkpoint), epoch + 1)

    share = slice(hvd.rank(), None, hvd.size())
    scores = module.predict(mx.io.NDArrayIter(test_images[share], None, args.batch_size))
    num_right = (scores.argmax(axis=1) == mx.nd.array(test_labels[share])).sum()
    # Horovod: shares may differ by one image, so sum the counts instead of averaging accuracies.
    accuracy = hvd.allreduce(num_right, op=hvd.Sum, name="right").asscalar() / len(test_labels)
    if is_first:
        print(f"test accuracy: {accuracy:.2%} on {hvd.size()} rank(s)")
    mx.nd.waitall()  # Horovod: nothing is in flight when this rank leaves the job.


if __name__ == "__main__":
    main()
