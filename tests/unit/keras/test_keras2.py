"""Keras 2 beside Keras 3 in one process, on a rank that only believes it has a peer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras
from recording_ops import REDUCED, RecordingOps, pretend_two_ranks

import horovod.keras as hvd
import horovod.tensorflow as tensorflow_hvd
from horovod.errors import UsageError
from horovod.tensorflow.keras_generation import generation_of, keras_of, keras_of_tensorflow

if TYPE_CHECKING:
    from collections.abc import Callable

NEW, LEGACY = keras.optimizers, keras.optimizers.legacy


@pytest.fixture(autouse=True)
def two_ranks(monkeypatch: pytest.MonkeyPatch) -> RecordingOps:
    return pretend_two_ranks(monkeypatch)


@pytest.fixture(params=[NEW, LEGACY], ids=["new", "legacy"])
def kinds(request: pytest.FixtureRequest) -> Any:
    """The module of optimizers."""
    return request.param


def loss_of(variable: tf.Variable) -> Callable[[], tf.Tensor]:
    """A loss whose gradient is 1."""
    return lambda: 1.0 * variable


def taped(variable: tf.Variable) -> tuple[tf.Tensor, tf.GradientTape]:
    with tf.GradientTape() as tape:
        loss = loss_of(variable)()
    return loss, tape


def by_minimize(optimizer: Any, variable: tf.Variable) -> None:
    optimizer.minimize(loss_of(variable), [variable])


def by_minimize_of_a_tape(optimizer: Any, variable: tf.Variable) -> None:
    loss, tape = taped(variable)
    optimizer.minimize(loss, [variable], tape=tape)


def by_apply_gradients(optimizer: Any, variable: tf.Variable) -> None:
    loss, tape = taped(variable)
    optimizer.apply_gradients(zip(tape.gradient(loss, [variable]), [variable], strict=True))


def by_two_steps(optimizer: Any, variable: tf.Variable) -> None:
    loss, tape = taped(variable)
    optimizer.apply_gradients(optimizer._compute_gradients(loss, [variable], tape=tape))


def by_own_aggregation(optimizer: Any, variable: tf.Variable) -> None:
    loss, tape = taped(variable)
    (gradient,) = tape.gradient(loss, [variable])
    pairs = [(gradient * REDUCED, variable)]
    optimizer.apply_gradients(pairs, experimental_aggregate_gradients=False)


def by_a_branch(optimizer: Any, variable: tf.Variable) -> None:
    loss, tape = taped(variable)
    pairs = optimizer.compute_gradients(loss, [variable], tape=tape)

    def step() -> tf.Tensor:
        optimizer.apply_gradients(pairs)
        return tf.constant(True)

    tf.cond(pairs[0][0] > 0.0, step, lambda: tf.constant(False))


WAYS = [
    by_minimize,
    by_minimize_of_a_tape,
    by_apply_gradients,
    by_two_steps,
    by_own_aggregation,
    by_a_branch,
]


@pytest.mark.parametrize("in_a_graph", [False, True])
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_gradients_are_reduced_once(way: Any, in_a_graph: bool, kinds: Any) -> None:
    variable = tf.Variable(0.0)
    optimizer = hvd.DistributedOptimizer(kinds.SGD(1.0))
    step = tf.function(way, autograph=False) if in_a_graph else way
    for count in (1, 2):
        step(optimizer, variable)
        assert float(variable) == -REDUCED * count
    assert int(optimizer.iterations) == 2


def test_what_was_computed_and_not_applied_does_not_count_in_another_graph(kinds: Any) -> None:
    variable = tf.Variable(0.0)
    optimizer = hvd.DistributedOptimizer(kinds.SGD(1.0))
    optimizer._compute_gradients(loss_of(variable), [variable])
    tf.function(by_apply_gradients, autograph=False)(optimizer, variable)
    assert float(variable) == -REDUCED


def test_gradients_in_a_graph_of_version_1() -> None:
    with tf.Graph().as_default():
        variable = tf.compat.v1.get_variable("v", (), initializer=tf.zeros_initializer())
        optimizer = hvd.DistributedOptimizer(LEGACY.SGD(1.0))
        (gradient,) = optimizer.get_gradients(3.0 * variable, [variable])
        step = optimizer.apply_gradients([(gradient, variable)])
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            session.run(step)
            assert session.run(variable) == -3.0 * REDUCED


def test_aggregation_in_a_graph_of_version_1_is_refused() -> None:
    optimizer = hvd.DistributedOptimizer(LEGACY.SGD(1.0), backward_passes_per_step=2)
    with tf.Graph().as_default(), pytest.raises(UsageError, match="leave eager execution enabled"):
        optimizer.get_gradients(tf.constant(1.0), [])


def test_the_class_and_the_state_stay(kinds: Any) -> None:
    variable = tf.Variable(1.0)
    plain = kinds.Adam(0.25)
    plain.minimize(loss_of(variable), [variable])
    wrapped = hvd.DistributedOptimizer(plain)
    assert (type(wrapped).__name__, type(wrapped).__module__) == ("Adam", "horovod._keras")
    assert isinstance(wrapped, kinds.Adam)
    assert type(wrapped) == kinds.Adam  # noqa: E721
    assert wrapped.get_config() == plain.get_config()
    assert int(wrapped.iterations) == 1
    assert [v.ref() for v in wrapped.variables()] == [v.ref() for v in wrapped.variables]
    again = type(wrapped).from_config(wrapped.get_config())
    assert type(again).__module__ == "horovod._keras"


@pytest.mark.parametrize(
    ("clipping", "moved"),
    [({"clipnorm": 3.0}, 3.0), ({"clipvalue": 4.0}, 4.0), ({"global_clipnorm": 5.0}, 5.0)],
)
def test_the_reduced_gradient_is_clipped(
    clipping: dict[str, float], moved: float, kinds: Any
) -> None:
    variable = tf.Variable(0.0)
    by_apply_gradients(hvd.DistributedOptimizer(kinds.SGD(1.0, **clipping)), variable)
    assert float(variable) == pytest.approx(-moved)


@pytest.mark.parametrize("way", [by_minimize, by_apply_gradients])
@pytest.mark.parametrize(("average", "moved"), [(False, 3 * REDUCED), (True, REDUCED)])
def test_local_aggregation(average: bool, moved: float, way: Any, kinds: Any) -> None:
    variable = tf.Variable(0.0)
    optimizer = tensorflow_hvd.DistributedOptimizer(
        kinds.SGD(1.0), backward_passes_per_step=3, average_aggregated_gradients=average
    )
    seen = []
    step = tf.function(way, autograph=False)
    for _ in range(6):
        step(optimizer, variable)
        seen.append(float(variable))
    assert seen == [0, 0, -moved, -moved, -moved, -2 * moved]
    assert int(optimizer.iterations) == 6


def test_layers_and_variables_of_this_rank(kinds: Any) -> None:
    layers = [keras.layers.Dense(1, use_bias=False) for _ in range(3)]
    for layer in layers:
        layer.build((1, 1))
        layer.kernel.assign([[0.0]])
    optimizer = hvd.PartialDistributedOptimizer(kinds.SGD(1.0), local_layers=layers[1])
    optimizer.register_local_var(layers[2].kernel)
    kernels = [layer.kernel for layer in layers]
    optimizer.apply_gradients([(tf.ones((1, 1)), kernel) for kernel in kernels])
    assert [float(kernel[0, 0]) for kernel in kernels] == [-REDUCED, -0.5, -0.5]
    with pytest.raises(UsageError, match="no Keras layer"):
        hvd.PartialDistributedOptimizer(kinds.SGD(1.0), local_layers="dense")


@pytest.mark.parametrize("outside", [False, True])
def test_a_step_is_skipped_by_the_reduced_gradients(outside: bool, kinds: Any) -> None:
    scale = keras.mixed_precision.LossScaleOptimizer
    if outside:
        scaler = optimizer = scale(hvd.DistributedOptimizer(kinds.SGD(1.0)), initial_scale=8.0)
    else:
        scaler = scale(kinds.SGD(1.0), initial_scale=8.0)
        optimizer = hvd.DistributedOptimizer(scaler)
    variable = tf.Variable(0.0)
    for gradient, moved, kept in [(8.0, -8 * REDUCED, 8.0), (np.inf, -8 * REDUCED, 4.0)]:
        optimizer.apply_gradients([(tf.constant(gradient, tf.float32), variable)])
        assert (float(variable), float(scaler.loss_scale)) == (moved, kept)


def test_arguments_reach_the_reduction(two_ranks: RecordingOps, kinds: Any) -> None:
    table, other = tf.Variable(tf.zeros((4, 1))), tf.Variable(0.0)
    optimizer = hvd.DistributedOptimizer(
        kinds.SGD(1.0), "mine", op=hvd.Sum, sparse_as_dense=True, groups=[[table, other]]
    )
    slices = tf.IndexedSlices(tf.ones((2, 1)), tf.constant([1, 1]), tf.constant([4, 1]))
    optimizer.apply_gradients([(slices, table), (tf.constant(1.0), other)])
    assert table.numpy().ravel().tolist() == [0.0, -2 * REDUCED, 0.0, 0.0]
    assert two_ranks.groups == [2]
    assert two_ranks.names[0].startswith("mine_Allreduce.0.")


def test_wrong_optimizers(kinds: Any) -> None:
    wrapped = hvd.DistributedOptimizer(kinds.SGD(1.0))
    with pytest.raises(UsageError, match="already"):
        hvd.DistributedOptimizer(wrapped)
    with pytest.raises(UsageError, match="holds a DistributedOptimizer already"):
        hvd.DistributedOptimizer(keras.mixed_precision.LossScaleOptimizer(wrapped))
    with pytest.raises(UsageError, match="op=Adasum is not possible"):
        hvd.DistributedOptimizer(kinds.SGD(1.0), op=hvd.Adasum)
    with pytest.raises(ValueError, match="No gradients provided"):
        wrapped.apply_gradients([(None, tf.Variable(0.0))])


def test_the_classes_say_which_keras_it_is() -> None:
    class Mine(keras.optimizers.SGD):
        pass

    assert keras_of(Mine) is keras
    assert generation_of(keras) == 2
    assert keras_of(int) is None
    assert generation_of(keras_of_tensorflow()) == 3, "both are here at once"
