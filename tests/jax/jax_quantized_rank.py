"""Ranks that are threads on two hosts: 8 bits between them, outside and inside of jit."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import horovod.jax as hvd
from horovod._rank.start import engine_options
from horovod._rendezvous.link_speed import LinkSpeeds
from horovod.errors import UsageError
from horovod.testing import run_ranks, threads

COUNT = 600


def values(rank: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return what a rank gives."""
    return np.random.default_rng(rank).standard_normal(COUNT).astype(np.float32)


def reduce(name: str) -> list[Any]:
    """Return the averages of the ranks' values, in three ways."""
    hvd.init()
    compression = getattr(hvd.Compression, name)
    own = jnp.asarray(values(hvd.rank()))
    outside = hvd.allreduce(own, compression=compression)
    inside = jax.jit(lambda x: hvd.allreduce([x, jnp.arange(3)], compression=compression))(own)
    assert inside[1].tolist() == [0, 1, 2]
    _, gradient = hvd.value_and_grad(lambda x: (x * own).sum(), compression=compression)(own)
    refusal = ""
    try:
        hvd.allreduce(own, op=hvd.Max, compression=compression)
    except UsageError as error:
        refusal = str(error)
    assert "8 bits" in refusal
    return [np.asarray(each) for each in (outside, inside[0], gradient)]


def automatic(name: str) -> np.ndarray[Any, Any]:
    """Return the average of the ranks' values, computed inside of jit."""
    hvd.init()
    compression = getattr(hvd.Compression, name)
    own = jnp.asarray(values(hvd.rank()))
    most = hvd.allreduce(jnp.arange(3.0) + hvd.rank(), op=hvd.Max, compression=hvd.Compression.auto)
    assert most.tolist() == [1.0, 2.0, 3.0]
    return np.asarray(jax.jit(lambda x: hvd.allreduce(x, compression=compression))(own))


def main() -> None:
    """Check all formats."""
    exact = (values(0) + values(1)) / 2
    for name in ("int8", "fp8", "fp8_e5m2"):
        first, second = run_ranks(2, reduce, name, hosts=[1, 1])
        for ours, theirs in zip(first, second, strict=True):
            assert np.array_equal(ours, theirs)
            assert np.array_equal(ours, first[0])
            assert 0 < np.abs(ours - exact).max() < np.abs(exact).max() / 4
        print(name, "is rounded alike")
    # What a computation was compiled for does not matter: the engine chooses.
    for bytes_per_s, same_as in ((1.25e7, "int8"), (1.25e9, "none")):
        threads.engine_options = partial(
            engine_options, speeds=LinkSpeeds(4e-5, (bytes_per_s,) * 2)
        )
        for ours, wanted in zip(
            run_ranks(2, automatic, "auto", hosts=[1, 1]),
            run_ranks(2, automatic, same_as, hosts=[1, 1]),
            strict=True,
        ):
            assert np.array_equal(ours, wanted)
        print("auto is", same_as)


if __name__ == "__main__":
    main()
