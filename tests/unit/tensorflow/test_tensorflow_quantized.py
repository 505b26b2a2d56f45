"""Compression to 8 bits in TensorFlow: eager, in graphs and of gradients, and its refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import horovod.tensorflow as hvd
from horovod.errors import UsageError
from horovod.testing import run_ranks


def _values(rank: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(rank).standard_normal(600).astype(np.float32)


def _gradient(variable: tf.Variable, own: tf.Tensor, compression: Any) -> tf.Tensor:
    @tf.function
    def step() -> tf.Tensor:
        with hvd.DistributedGradientTape(tf.GradientTape(), compression=compression) as tape:
            loss = tf.reduce_sum(variable * own)
        (gradient,) = tape.gradient(loss, [variable])
        return gradient

    return step()


@pytest.mark.parametrize("name", ["int8", "fp8", "fp8_e5m2"])
def test_values_are_rounded_between_hosts(name: str) -> None:
    def reduce() -> list[Any]:
        hvd.init()
        compression = getattr(hvd.Compression, name)
        own = tf.constant(_values(hvd.rank()))
        eager = hvd.allreduce(own, compression=compression, name="eager")
        graph = tf.function(
            lambda x: hvd.grouped_allreduce([x, tf.constant([1])], compression=compression)
        )(own)
        gradient = _gradient(tf.Variable(tf.zeros(600)), own, compression)
        assert graph[1].numpy().tolist() == [1]
        return [each.numpy() for each in (eager, graph[0], gradient)]

    results = run_ranks(2, reduce, hosts=[1, 1])
    exact = (_values(0) + _values(1)) / 2
    for values in results[0]:
        assert np.array_equal(values, results[0][0])
        assert 0 < np.abs(values - exact).max() < np.abs(exact).max() / 4
    assert all(map(np.array_equal, results[0], results[1]))


def test_what_cannot_be_quantized_is_refused() -> None:
    def refused() -> None:
        hvd.init()
        int8 = hvd.Compression.int8
        slices = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([0]), tf.constant([3, 2]))
        with pytest.raises(UsageError, match="sparse_as_dense"):
            hvd.allreduce(slices, compression=int8)
        with pytest.raises(UsageError, match="8 bits"):
            hvd.allreduce(tf.ones(3), op=hvd.Max, compression=int8)
        with pytest.raises(UsageError, match="allreduce"):
            hvd.reducescatter(tf.ones(3), compression=int8)

    run_ranks(1, refused)
