"""What ranks exchange of an optimizer whose state is divided among them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

import horovod.keras as hvd
from horovod._keras.sharding.exchange import GroupedExchange
from horovod._train.division import Division

if TYPE_CHECKING:
    import pytest


class Operations:
    """Keeps the names of operations."""

    def __init__(self) -> None:
        self.names: list[str] = []

    reshape = staticmethod(np.reshape)

    def grouped_reducescatter(self, rows: list[Any], name: str, **options: Any) -> list[Any]:
        self.names.append(name)
        return [row[: len(row) // 2] for row in rows]

    def grouped_allgather(self, rows: list[Any], name: str, **options: Any) -> list[Any]:
        self.names.append(name)
        return [np.concatenate([row, row]) for row in rows]


def test_ranks_that_send_other_gradients_do_not_meet() -> None:
    """Otherwise gradients of variables of the same shape are added to each other."""
    ops, division = Operations(), Division(0, 2)
    settings = SimpleNamespace(op=None, predivide_factor=1.0, compression=None, process_set=None)
    exchange = GroupedExchange(ops, settings, lambda: "Shares.1", lambda g, _: g)
    for names in (["0.kernel"], ["1.kernel"], ["0.kernel"]):
        (piece,) = exchange.scatter([np.zeros((2, 2))], names, division)
        assert piece.shape == (2,)
        (whole,) = exchange.gather([piece], [(2, 2)], names, division)
        assert whole.shape == (2, 2)
    scatters, gathers = ops.names[::2], ops.names[1::2]
    for found, what in ((scatters, "gradients"), (gathers, "updates")):
        assert all(name.startswith(f"Shares.1.{what}.") for name in found)
        assert found[0] == found[2] != found[1]


def test_names_tell_which_gradients_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Any] = []
    scatter = GroupedExchange.scatter

    def record(self: Any, gradients: Any, names: Any, division: Any) -> Any:
        sent.append(names)
        return scatter(self, gradients, names, division)

    monkeypatch.setattr(GroupedExchange, "scatter", record)
    hvd.init()
    try:
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), shard_state=True)
        variables = [keras.Variable(np.zeros(2, np.float32), name="kernel") for _ in range(2)]
        optimizer.build(variables)
        optimizer.apply([tf.ones(2), None], variables)
        optimizer.apply([None, tf.ones(2)], variables)
    finally:
        hvd.shutdown()
    assert sent == [["000000.kernel"], ["000001.kernel"]]
    assert [v.numpy().tolist() for v in variables] == [[-1.0, -1.0]] * 2
