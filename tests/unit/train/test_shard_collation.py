"""hvd.shard for frameworks that take NumPy arrays, without any framework."""

from __future__ import annotations

import subprocess
import sys
from collections import namedtuple

import numpy as np
import pytest

from horovod._train.shard.api import shard
from horovod._train.shard.collation import stack
from horovod._train.shard.shard import shuffled
from horovod.errors import UsageError

Pair = namedtuple("Pair", "x y")


def test_samples_are_stacked_in_their_structure() -> None:
    batch = stack([{"a": (1, [2.0, "x"]), "b": Pair(b"1", 3)}] * 2)
    assert batch["a"][0].tolist() == [1, 1]
    assert [each.tolist() for each in batch["a"][1]] == [[2.0, 2.0], ["x", "x"]]
    assert isinstance(batch["b"], Pair)
    assert stack([np.zeros(3), np.ones(3)]).shape == (2, 3)


def test_what_cannot_be_stacked_is_refused() -> None:
    with pytest.raises(TypeError, match="give collate="):
        stack([object(), object()])
    with pytest.raises(ValueError, match="same shape"):
        stack([np.zeros(3), np.zeros(2)])


def test_batches_are_arrays(alone: None) -> None:
    (batch,) = shard((np.arange(6).reshape(3, 2), [1, 2, 3]), batch_size=3, shuffle=False)
    assert [each.tolist() for each in batch] == [[[0, 1], [2, 3], [4, 5]], [1, 2, 3]]
    (batch,) = shard([(1, 2.0), (3, 4.0)], batch_size=2, shuffle=False)
    assert [each.tolist() for each in batch] == [[1, 3], [2.0, 4.0]]
    with pytest.raises(UsageError, match="another order in each process"):
        shard({1, 2}, batch_size=1)


def test_a_buffer_shuffles_the_same_way_each_time() -> None:
    orders = [list(shuffled(iter(range(100)), 10, seed)) for seed in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == list(range(100))
    assert orders[0] != list(range(100))
    assert all(each <= place + 10 for place, each in enumerate(orders[0]))


def test_nothing_is_loaded_that_the_data_has_not_loaded() -> None:
    program = """
import sys
import horovod._train.shard.api
print(sorted({"torch", "tensorflow", "jax", "numpy", "pyarrow", "datasets"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr
