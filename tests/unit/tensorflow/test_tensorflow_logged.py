"""Tensors of TensorFlow as values of hvd.log, and the norm of gradients; ranks are threads."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

import pytest
import tensorflow as tf

import horovod.tensorflow as hvd
from horovod.errors import UsageError
from horovod.testing import run_ranks

if TYPE_CHECKING:
    from pathlib import Path


def test_tensors_and_variables_are_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = tmp_path / "metrics.jsonl"
    monkeypatch.setenv("HOROVOD_LOG", f"jsonl:{metrics}")

    def body() -> int:
        hvd.init()
        variable = tf.Variable(float(hvd.rank()))
        hvd.log(variable=variable, tensor=tf.constant(2, tf.int64), half=tf.ones((1,), tf.float16))
        variable.assign(100.0)
        with pytest.raises(UsageError, match=r"has the shape \(2,\)"):
            hvd.log(loss=tf.ones(2))
        with pytest.raises(UsageError, match="is complex"):
            hvd.log(loss=tf.constant(1j))
        with pytest.raises(UsageError, match="while TensorFlow builds a graph"):
            tf.function(lambda x: hvd.log(loss=x), autograph=False)(tf.constant(1.0))
        for _ in range(hvd.rank()):
            hvd.log(late=1.0)
        return int(hvd.join())

    assert run_ranks(2, body) == [1, 1]
    first, late = (json.loads(line) for line in metrics.read_text().splitlines())
    assert (first["step"], late["step"]) == (0, 0)
    assert first["values"] == {"variable": 0.5, "tensor": 2.0, "half": 1.0}
    assert late["values"] == {"late": 1.0}


@pytest.mark.parametrize("in_graph", [False, True])
def test_norm_of_gradients(in_graph: bool) -> None:
    rows = tf.IndexedSlices(tf.constant([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]), [4, 4, 1], (9, 2))
    gradients = [tf.constant([[1.0], [2.0]]), None, rows, tf.constant([3.0], tf.bfloat16)]

    def compute() -> tf.Tensor:
        return hvd.gradient_norm(gradients)

    norm = tf.function(compute)() if in_graph else compute()
    assert norm.dtype == tf.float64
    assert float(norm) == pytest.approx(math.sqrt(1 + 4 + 16 + 36 + 25 + 36 + 9), rel=1e-12)
    with pytest.raises(UsageError, match="all of them are None"):
        hvd.gradient_norm([None])
