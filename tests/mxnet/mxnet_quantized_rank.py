"""Ranks that are threads on two hosts: a trainer whose gradients travel in 8 bits."""

from __future__ import annotations

from typing import Any

import mxnet as mx
import numpy as np

import horovod.mxnet as hvd
from horovod.testing import run_ranks

COUNT = 600


def values(rank: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return the gradient of a rank."""
    return np.random.default_rng(rank).standard_normal(COUNT).astype(np.float32)


def reduce(name: str, num_groups: int) -> list[Any]:
    """Return what a step of a trainer subtracts from two parameters."""
    hvd.init()
    params = [
        mx.gluon.Parameter(f"p{number}", shape=(COUNT,), init="zeros", dtype="float32")
        for number in range(2)
    ]
    for param in params:
        param.initialize()
    trainer = hvd.DistributedTrainer(
        params, "sgd", {"learning_rate": 1.0}, compression=getattr(hvd.Compression, name),
        num_groups=num_groups, gradient_predivide_factor=2.0,
    )  # fmt: skip
    own = mx.nd.array(values(hvd.rank()))
    with mx.autograd.record():
        loss = sum((param.data() * own).sum() for param in params)
    loss.backward()
    trainer.step(1)
    return [-param.data().asnumpy() for param in params]


def main() -> None:
    """Check all formats."""
    exact = (values(0) + values(1)) / 2
    for name in ("none", "int8", "fp8", "fp8_e5m2"):
        for num_groups in (0, 1):
            first, second = run_ranks(2, reduce, name, num_groups, hosts=[1, 1])
            for ours, theirs in zip(first, second, strict=True):
                assert np.array_equal(ours, theirs)
                error = np.abs(ours - exact).max()
                assert error < np.abs(exact).max() / 4
                assert bool(error > 1e-3) is (name != "none")
        print(name, "is", "exact" if name == "none" else "rounded")


if __name__ == "__main__":
    main()
