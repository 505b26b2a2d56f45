"""Trains a small network on handwritten digits with JAX while ranks come and go.

    horovodrun -np 2 --min-np 1 python examples/jax/pytree_elastic.py

What is lost with a rank is repeated from the last commit, and each image counts once per epoch. It
needs pip install jax optax scikit-learn
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits

import horovod.jax as hvd


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=32, help="images per rank and step")
    parser.add_argument("--lr", type=float, default=0.003)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def load_data(seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """The same 80/20 split on all ranks, because the seed is the same."""
    digits = load_digits()
    order = np.random.default_rng(seed).permutation(len(digits.target))
    data = {
        "image": digits.data.astype("float32")[order] / 16,
        "label": digits.target.astype("int32")[order],
    }
    cut = len(order) // 5
    test = {name: column[:cut] for name, column in data.items()}
    return {name: column[cut:] for name, column in data.items()}, test


def initial_params(seed: int) -> dict[str, Any]:
    first, second = jax.random.split(jax.random.key(seed))
    return {
        "hidden": jax.random.normal(first, (64, 128)) * (2 / 64) ** 0.5,
        "out": jax.random.normal(second, (128, 10)) * (2 / 128) ** 0.5,
    }


def scores_of(params: dict[str, Any], images: Any) -> Any:
    return jax.nn.relu(images @ params["hidden"]) @ params["out"]


def main() -> None:
    args = parse_args()
    hvd.init()
    data, test = load_data(args.seed)
    tx = hvd.DistributedOptimizer(optax.adam(args.lr))

    @partial(jax.jit, donate_argnums=(0, 1))
    def step(params: Any, opt_state: Any, batch: Any, samples: Any) -> Any:
        def loss_of(params: Any) -> Any:
            scores = scores_of(params, batch["image"])
            return optax.softmax_cross_entropy_with_integer_labels(scores, batch["label"]).mean()

        # Horovod: a rank weighs as much as it has images of its own.
        updates, opt_state = tx.update(jax.grad(loss_of)(params), opt_state, weight=samples)
        return optax.apply_updates(params, updates), opt_state

    # Horovod: all ranks start from the values of rank 0, and newcomers from those of the others.
    params = initial_params(args.seed)
    training = hvd.elastic.Training(params=params, opt_state=tx.init(params))
    state = training.state
    for epoch in training.epochs(args.epochs):
        for batch in training.batches(data, args.batch_size, seed=args.seed):
            with training.guard():  # Horovod: if a rank is lost in here, the step is repeated.
                state.params, state.opt_state = step(
                    state.params, state.opt_state, batch, jnp.float32(training.samples)
                )
        if hvd.rank() == 0:
            print(f"epoch {epoch + 1:2d} on {hvd.size()} rank(s)")

    if hvd.rank() == 0:
        right = scores_of(state.params, test["image"]).argmax(axis=1) == test["label"]
        print(f"test accuracy: {float(right.mean()):.2%}")


if __name__ == "__main__":
    main()
