"""Compression.auto in TensorFlow: the engine chooses, also for operations of graphs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import horovod.tensorflow as hvd
from horovod._rank.start import engine_options
from horovod._rendezvous.link_speed import LinkSpeeds
from horovod.testing import run_ranks, threads


def _values(rank: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(rank).standard_normal(600).astype(np.float32)


def _reduce(name: str) -> list[Any]:
    hvd.init()
    compression = getattr(hvd.Compression, name)
    own = tf.constant(_values(hvd.rank()))
    variable = tf.Variable(tf.zeros(600))

    @tf.function
    def step() -> tuple[tf.Tensor, tf.Tensor]:
        with hvd.DistributedGradientTape(tf.GradientTape(), compression=compression) as tape:
            loss = tf.reduce_sum(variable * own)
        (gradient,) = tape.gradient(loss, [variable])
        return gradient, hvd.allreduce(own, compression=compression)

    eager = hvd.allreduce(own, compression=compression)
    return [each.numpy() for each in (eager, *step())]


@pytest.mark.parametrize(("bytes_per_s", "same_as"), [(1.25e7, "int8"), (1.25e9, "none")])
def test_it_does_what_the_links_are_worth(
    monkeypatch: pytest.MonkeyPatch, bytes_per_s: float, same_as: str
) -> None:
    def options(config: Any, names: Any) -> Any:
        return engine_options(config, names, speeds=LinkSpeeds(4e-5, (bytes_per_s,) * 2))

    monkeypatch.setattr(threads, "engine_options", options)
    automatic = run_ranks(2, _reduce, "auto", hosts=[1, 1])
    expected = run_ranks(2, _reduce, same_as, hosts=[1, 1])
    for own, wanted in zip(automatic, expected, strict=True):
        assert all(map(np.array_equal, own, wanted))


def test_what_8_bits_are_not_for_travels_as_it_is() -> None:
    def reduce() -> None:
        hvd.init()
        auto = hvd.Compression.auto
        slices = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([0]), tf.constant([3, 2]))
        assert hvd.allreduce(slices, compression=auto).values.numpy().tolist() == [[1.0, 1.0]]
        assert hvd.allreduce(tf.ones(3), op=hvd.Max, compression=auto).numpy().tolist() == [1.0] * 3
        assert hvd.reducescatter(tf.ones(3), compression=auto).numpy().tolist() == [1.0] * 3

    run_ranks(1, reduce)
