"""Trains a small network on handwritten digits with JAX and optax: alone, or on several ranks.

    python examples/jax/digits.py
    horovodrun -np 2 python examples/jax/digits.py

The lines that make it distributed are marked with "Horovod:". The data is the set of 1797 images
of 8 x 8 pixels that scikit-learn brings along, so nothing is downloaded. With --checkpoint FOLDER
it goes on from what it finds there. It needs

    pip install jax optax orbax-checkpoint scikit-learn
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
from sklearn.datasets import load_digits

import horovod.jax as hvd


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=32, help="images per rank and step")
    parser.add_argument("--lr", type=float, default=0.002, help="learning rate of one rank")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--checkpoint", type=Path, help="a folder, for all that was reached")
    parser.add_argument("--smoke", action="store_true", help="two epochs, to see that it runs")
    args = parser.parse_args()
    if args.smoke:
        args.epochs = min(args.epochs, 2)
    return args


def initial_params(seed: int) -> list[dict[str, Any]]:
    """Three linear layers: images (batch, 64) to scores (batch, 10)."""
    sizes = (64, 128, 64, 10)
    keys = jax.random.split(jax.random.key(seed), len(sizes) - 1)
    return [
        {"w": jax.random.normal(key, (m, n)) * (2 / m) ** 0.5, "b": jnp.zeros(n)}
        for key, m, n in zip(keys, sizes[:-1], sizes[1:], strict=True)
    ]


def scores_of(params: list[dict[str, Any]], images: Any) -> Any:
    *hidden, last = params
    for layer in hidden:
        images = jax.nn.relu(images @ layer["w"] + layer["b"])
    return images @ last["w"] + last["b"]


def loss_of(params: list[dict[str, Any]], images: Any, labels: Any) -> Any:
    scores = scores_of(params, images)
    return optax.softmax_cross_entropy_with_integer_labels(scores, labels).mean()


def load_data(seed: int) -> tuple[Any, Any, Any, Any]:
    """The same 80/20 split on all ranks, because the seed is the same."""
    digits = load_digits()
    images, labels = digits.data.astype("float32") / 16, digits.target.astype("int32")
    order = np.random.default_rng(seed).permutation(len(labels))
    train, test = order[len(order) // 5 :], order[: len(order) // 5]
    return images[train], labels[train], images[test], labels[test]


def checkpoints_in(folder: Path | None) -> ocp.CheckpointManager | None:
    """Horovod: to each rank, JAX is a job of one process, so rank 0 alone reads and writes."""
    if folder is None or hvd.rank() != 0:
        return None
    return ocp.CheckpointManager(
        folder.absolute(), options=ocp.CheckpointManagerOptions(max_to_keep=2)
    )


def resumed(checkpoints: ocp.CheckpointManager | None, reached: Any) -> tuple[int, Any]:
    """How many epochs are done, and what was reached then; the same on all ranks."""
    epoch = 0
    if checkpoints is not None and checkpoints.latest_step() is not None:
        epoch = checkpoints.latest_step()
        reached = checkpoints.restore(epoch, args=ocp.args.StandardRestore(reached))
    # Horovod: start everywhere as rank 0 does.
    return hvd.broadcast_object(epoch, root_rank=0), hvd.broadcast_parameters(reached, root_rank=0)


def main() -> None:
    args = parse_args()

    # Horovod: join the job. Without horovodrun this is a job of one rank.
    hvd.init()
    images, labels, test_images, test_labels = load_data(args.seed)

    # Horovod: each rank looks at every size()-th image, and all at the same number of them.
    length = len(labels) // hvd.size() * hvd.size()
    images = images[hvd.rank() : length : hvd.size()]
    labels = labels[hvd.rank() : length : hvd.size()]

    # Horovod: a step sees size() times as many images, so it may go further; the optimizer
    # averages the gradients over the ranks, all of them in one operation.
    tx = hvd.DistributedOptimizer(optax.adam(args.lr * hvd.size() ** 0.5))
    checkpoints = checkpoints_in(args.checkpoint)
    params = initial_params(args.seed)
    begin, (params, state) = resumed(checkpoints, (params, tx.init(params)))
    if hvd.rank() == 0 and begin:
        print(f"goes on after epoch {begin}")

    @jax.jit
    def step(params: Any, state: Any, images: Any, labels: Any) -> Any:
        loss, grads = jax.value_and_grad(loss_of)(params, images, labels)
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state, loss

    shuffle = np.random.default_rng(args.seed + hvd.rank())
    for epoch in range(begin, args.epochs):
        losses = []
        for batch in np.array_split(
            shuffle.permutation(len(labels)), -(-len(labels) // args.batch_size)
        ):
            params, state, loss = step(params, state, images[batch], labels[batch])
            losses.append(loss)
        mean = hvd.allreduce(jnp.stack(losses).mean())  # Horovod: over all ranks.
        if hvd.rank() == 0:
            print(f"epoch {epoch + 1:2d}: loss {float(mean):.4f}")
        if checkpoints is not None:  # Horovod: all ranks hold the same weights, so one saves them.
            checkpoints.save(epoch + 1, args=ocp.args.StandardSave((params, state)))
    if checkpoints is not None:
        checkpoints.close()  # writes what is left

    hvd.check_in_sync(params)
    share = slice(hvd.rank(), None, hvd.size())
    right = (scores_of(params, test_images[share]).argmax(axis=1) == test_labels[share]).sum()
    # Horovod: shares may differ by one image, so sum the counts instead of averaging accuracies.
    accuracy = float(hvd.allreduce(right, op=hvd.Sum)) / len(test_labels)
    if hvd.rank() == 0:
        print(f"test accuracy: {accuracy:.2%} on {hvd.size()} rank(s)")


if __name__ == "__main__":
    main()
