"""DistributedGradientTape, on a rank that only believes it has a peer."""

from __future__ import annotations

from typing import Any

import keras
import pytest
import tensorflow as tf
from recording_ops import REDUCED, RecordingOps, pretend_two_ranks

from horovod._train.reduce_op import Sum
from horovod.errors import UsageError
from horovod.tensorflow.tape import DistributedGradientTape, PartialDistributedGradientTape


@pytest.fixture
def two_ranks(monkeypatch: pytest.MonkeyPatch) -> RecordingOps:
    return pretend_two_ranks(monkeypatch)


def recorded(*variables: Any, **options: Any) -> tuple[tf.GradientTape, Any]:
    """A tape over the sum of squares, and the sum."""
    with tf.GradientTape(**options) as tape:
        loss = tf.add_n([tf.reduce_sum(variable * variable) for variable in variables])
    return tape, loss


def test_a_tape_that_has_recorded(two_ranks: RecordingOps) -> None:
    a, b, unused = tf.Variable(3.0), tf.Variable([1.0, 2.0]), tf.Variable(7.0)
    tape, loss = recorded(a, b)
    wrapped = DistributedGradientTape(tape)
    assert (type(wrapped).__name__, isinstance(wrapped, tf.GradientTape)) == ("GradientTape", True)
    grad_a, grad_b, grad_unused = wrapped.gradient(loss, [a, b, unused])
    assert (float(grad_a), grad_b.numpy().tolist()) == (6 * REDUCED, [2 * REDUCED, 4 * REDUCED])
    assert grad_unused is None


def test_a_tape_that_records_afterwards(two_ranks: RecordingOps) -> None:
    a = tf.Variable(3.0)
    with DistributedGradientTape(tf.GradientTape(persistent=True)) as tape:
        loss = a * a
    for _ in range(2):
        assert float(tape.gradient(loss, [a])[0]) == 6 * REDUCED


def test_sources_may_have_any_structure(two_ranks: RecordingOps) -> None:
    a, b, table = tf.Variable(3.0), tf.Variable(4.0), tf.Variable([[1.0], [2.0]])
    with tf.GradientTape(persistent=True) as plain:
        loss = a * a + b * b + tf.reduce_sum(tf.gather(table, [1, 1]))
    tape = DistributedGradientTape(plain)
    assert float(tape.gradient(loss, a)) == 6 * REDUCED
    nested = tape.gradient(loss, {"b": (b,), "a": [a, table]})
    assert (float(nested["b"][0]), float(nested["a"][0])) == (8 * REDUCED, 6 * REDUCED)
    assert isinstance(nested["a"][1], tf.IndexedSlices)
    assert nested["a"][1].values.numpy().tolist() == [[REDUCED], [REDUCED]]


def test_zeros_for_unconnected_sources(two_ranks: RecordingOps) -> None:
    a, unused = tf.Variable(3.0), tf.Variable(7.0)
    tape, loss = recorded(a)
    zero = tf.UnconnectedGradients.ZERO
    wrapped = DistributedGradientTape(tape)
    grads = wrapped.gradient(loss, [a, unused], unconnected_gradients=zero)
    assert [float(g) for g in grads] == [6 * REDUCED, 0.0]


def test_output_gradients(two_ranks: RecordingOps) -> None:
    a = tf.Variable(3.0)
    tape, loss = recorded(a)
    (grad,) = DistributedGradientTape(tape).gradient(loss, [a], tf.constant(0.5))
    assert float(grad) == 3 * REDUCED


def test_local_sources(two_ranks: RecordingOps) -> None:
    a, local = tf.Variable(3.0), tf.Variable(4.0)
    tape, loss = recorded(a, local)
    wrapped = DistributedGradientTape(tape)
    wrapped.register_local_source(local)
    of_rank, of_all = wrapped.get_local_and_global_gradients(loss, [a, local])
    assert [(source is local, float(grad)) for source, grad in of_rank] == [(True, 4.0)]
    assert [(source is a, float(grad)) for source, grad in of_all] == [(True, 6 * REDUCED)]


def test_layers_of_this_rank(two_ranks: RecordingOps) -> None:
    shared, local = keras.layers.Dense(1, use_bias=False), keras.layers.Dense(1, use_bias=False)
    x = tf.ones([1, 1])
    with tf.GradientTape(persistent=True) as tape:
        loss = tf.reduce_sum(shared(x) + local(x))
    sources = [shared.kernel, local.kernel]
    partial = PartialDistributedGradientTape(tape, local_layers=local)
    assert [float(g[0, 0]) for g in partial.gradient(loss, sources)] == [REDUCED, 0.5]
    unscaled = PartialDistributedGradientTape(
        tape, local_layers=[local], scale_local_gradients=False
    )
    assert [float(g[0, 0]) for g in unscaled.gradient(loss, sources)] == [REDUCED, 1.0]
    for nothing in (None, []):
        whole = PartialDistributedGradientTape(tape, local_layers=nothing)
        assert [float(g[0, 0]) for g in whole.gradient(loss, sources)] == [REDUCED, REDUCED]


@pytest.mark.parametrize("layers", ["dense", [3], 7])
def test_what_is_no_layer_is_refused(layers: Any) -> None:
    with pytest.raises(UsageError, match="no Keras layer"):
        PartialDistributedGradientTape(tf.GradientTape(), local_layers=layers)


def test_arguments_arrive(two_ranks: RecordingOps) -> None:
    a, b = tf.Variable(3.0), tf.Variable(4.0)
    tape, loss = recorded(a, b)
    wrapped = DistributedGradientTape(tape, "cpu:0", "cpu:1", "thing", op=Sum, groups=1)
    wrapped.gradient(loss, [a, b], use_generic_names=True)
    (asked,) = two_ranks.calls
    assert (asked.device_dense, asked.device_sparse) == ("cpu:0", "cpu:1")
    assert (asked.reduction.op, asked.compression) == (Sum, "thing")
    assert two_ranks.names == ["grad_0.and.1"]


def test_a_tape_is_wrapped_once() -> None:
    tape = DistributedGradientTape(tf.GradientTape())
    with pytest.raises(UsageError, match="already"):
        DistributedGradientTape(tape)


def test_the_warning_of_num_groups_points_here() -> None:
    with pytest.warns(DeprecationWarning, match="use groups") as caught:
        DistributedGradientTape(tf.GradientTape(), num_groups=2)
    assert caught[0].filename == __file__
