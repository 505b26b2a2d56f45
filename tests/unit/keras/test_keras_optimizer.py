"""Keras optimizers, on a rank that only believes it has a peer: reducing multiplies by ten."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from recording_ops import REDUCED, RecordingOps, pretend_two_ranks

import horovod.keras as hvd
import horovod.tensorflow.keras as tf_hvd
from horovod._keras import compiling
from horovod._keras.reducer import key_of
from horovod.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable


def test_the_key_of_a_variable_is_never_that_of_another_one() -> None:
    """The memory of a variable that is gone is soon that of another one, and so its id."""
    keys = {key_of(np.zeros(3)) for _ in range(100)}
    assert len(keys) == 100
    variable = np.zeros(3)
    assert key_of(variable) in {key_of(variable)}
    assert not keys & {key_of(np.zeros(3)) for _ in range(100)}


@pytest.fixture(autouse=True)
def two_ranks(monkeypatch: pytest.MonkeyPatch) -> RecordingOps:
    return pretend_two_ranks(monkeypatch)


def sgd(**options: Any) -> keras.optimizers.SGD:
    return keras.optimizers.SGD(1.0, **options)


def linear(**options: Any) -> keras.Model:
    """One weight of 0; the gradient of its loss is 1."""
    layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
    model = keras.Sequential([keras.Input((1,)), layer])
    model.compile(loss=lambda _, y: y, **options)
    return model


def fit(model: keras.Model, batches: int = 1, epochs: int = 1) -> float:
    """Trains on batches of two; returns the weight."""
    x = np.ones((2 * batches, 1), np.float32)
    model.fit(x, x, batch_size=2, epochs=epochs, verbose=0)
    return float(model.weights[0][0, 0])


def by_apply(optimizer: Any, model: keras.Model) -> None:
    optimizer.apply([tf.constant([[1.0]])], model.trainable_variables)


def by_apply_of_a_built_one(optimizer: Any, model: keras.Model) -> None:
    optimizer.build(model.trainable_variables)
    optimizer.apply([tf.constant([[1.0]])])


def by_apply_gradients(optimizer: Any, model: keras.Model) -> None:
    optimizer.apply_gradients([(tf.constant([[1.0]]), model.trainable_variables[0])])


def by_a_function(optimizer: Any, model: keras.Model) -> None:
    tf.function(by_apply_gradients, autograph=False)(optimizer, model)


def by_a_function_that_autograph_rewrites(optimizer: Any, model: keras.Model) -> None:
    tf.function(by_apply_gradients)(optimizer, model)


def by_fit(optimizer: Any, model: keras.Model) -> None:
    model.compile(optimizer, lambda _, y: y)
    fit(model)


def by_fit_eagerly(optimizer: Any, model: keras.Model) -> None:
    model.compile(optimizer, lambda _, y: y, run_eagerly=True)
    fit(model)


WAYS = [
    by_apply,
    by_apply_of_a_built_one,
    by_apply_gradients,
    by_a_function,
    by_a_function_that_autograph_rewrites,
    by_fit,
    by_fit_eagerly,
]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_gradients_are_reduced_once(
    way: Callable[[Any, keras.Model], None], two_ranks: RecordingOps
) -> None:
    model = linear()
    way(hvd.DistributedOptimizer(sgd()), model)
    assert float(model.weights[0][0, 0]) == -REDUCED
    assert two_ranks.names == ["DistributedSGD_Allreduce.0.kernel"]


def test_the_class_stays() -> None:
    wrapped = hvd.DistributedOptimizer(sgd(momentum=0.5, nesterov=True))
    assert (type(wrapped).__name__, type(wrapped).__module__) == ("SGD", "horovod._keras")
    assert isinstance(wrapped, keras.optimizers.SGD)
    assert (float(wrapped.learning_rate), wrapped.momentum, wrapped.nesterov) == (1.0, 0.5, True)


def test_the_state_stays() -> None:
    model = linear(optimizer=keras.optimizers.Adam(0.25))
    fit(model, 3)
    state = [variable.numpy() for variable in model.optimizer.variables]
    wrapped = hvd.DistributedOptimizer(model.optimizer)
    kept = [variable.numpy() for variable in wrapped.variables]
    assert len(kept) == 4
    assert all(map(np.array_equal, kept, state))
    assert int(wrapped.iterations) == 3


def test_a_config_makes_an_optimizer_of_the_same_kind() -> None:
    wrapped = hvd.DistributedOptimizer(sgd(momentum=0.5), backward_passes_per_step=2)
    for kind in (type(wrapped), wrapped.__class__):
        again = kind.from_config(wrapped.get_config())
        assert type(again).__module__ == "horovod._keras"
        assert again.get_config() == wrapped.get_config()
        assert again._agg_helper.backward_passes_per_step == 2


def test_keras_serializes_the_plain_class() -> None:
    saved = keras.optimizers.serialize(hvd.DistributedOptimizer(sgd()))
    assert saved == keras.optimizers.serialize(sgd(name=saved["config"]["name"]))


def test_two_wrappings_of_a_class_are_alike_and_others_are_not() -> None:
    first, second = (hvd.DistributedOptimizer(sgd()) for _ in range(2))
    adam = hvd.DistributedOptimizer(keras.optimizers.Adam())
    assert type(first) == type(second) == keras.optimizers.SGD  # noqa: E721
    assert len({type(first), type(second), keras.optimizers.SGD, type(adam)}) == 2
    assert type(first) not in (type(adam), keras.optimizers.Adam)


def test_the_variables_can_be_called() -> None:
    optimizer = hvd.DistributedOptimizer(sgd())
    assert list(optimizer.variables()) == list(optimizer.variables)


@pytest.mark.parametrize(
    ("clipping", "moved"), [({"clipnorm": 3.0}, 3.0), ({"clipvalue": 4.0}, 4.0), ({}, REDUCED)]
)
def test_the_reduced_gradient_is_clipped(clipping: dict[str, float], moved: float) -> None:
    model = linear(optimizer=hvd.DistributedOptimizer(sgd(**clipping)))
    assert fit(model) == pytest.approx(-moved)


def test_accumulation_of_keras() -> None:
    model = linear(optimizer=hvd.DistributedOptimizer(sgd(gradient_accumulation_steps=2)))
    assert fit(model) == 0.0
    assert fit(model) == -REDUCED


def test_moving_averages_of_the_weights() -> None:
    plain = sgd(use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=2)
    model = linear(optimizer=hvd.DistributedOptimizer(plain))
    expected = linear(optimizer=sgd(use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=2))
    assert fit(model, 3, epochs=2) == pytest.approx(REDUCED * fit(expected, 3, epochs=2))


@pytest.mark.parametrize(("average", "moved"), [(False, 3 * REDUCED), (True, REDUCED)])
def test_local_aggregation(average: bool, moved: float, two_ranks: RecordingOps) -> None:
    optimizer = tf_hvd.DistributedOptimizer(
        sgd(), backward_passes_per_step=3, average_aggregated_gradients=average
    )
    model = linear(optimizer=optimizer)
    seen = []
    for _ in range(6):
        seen.append((fit(model), int(optimizer._agg_helper.counter)))
    assert seen == [(0, 1), (0, 2), (-moved, 0), (-moved, 1), (-moved, 2), (-2 * moved, 0)]
    assert int(optimizer.iterations) == 6
    assert set(two_ranks.names) == {"DistributedSGD_Allreduce.0.kernel"}


def test_local_variables_with_aggregation() -> None:
    optimizer = hvd.DistributedOptimizer(sgd(), backward_passes_per_step=2)
    shared, local = tf.Variable(0.0), tf.Variable(0.0)
    optimizer.register_local_var(local)
    for _ in range(2):
        optimizer.apply([tf.constant(1.0), tf.constant(1.0)], [shared, local])
    assert (float(shared), float(local)) == (-2 * REDUCED, -1.0), "the sum of two, by two ranks"


def test_embeddings_become_dense(two_ranks: RecordingOps) -> None:
    for passes in (1, 2):
        table = keras.layers.Embedding(4, 1, embeddings_initializer="zeros")
        model = keras.Sequential([keras.Input((1,), dtype="int32"), table])
        optimizer = hvd.DistributedOptimizer(
            sgd(), sparse_as_dense=True, backward_passes_per_step=passes
        )
        model.compile(optimizer, lambda _, y: y)
        x = np.array([[1], [1], [3], [3]])
        model.fit(x, x, batch_size=4 // passes, epochs=1, shuffle=False, verbose=0)
        weights = model.weights[0][:, 0]
        assert float(tf.reduce_sum(weights)) == -REDUCED * passes
        assert float(weights[0]) == 0.0


def test_layers_of_this_rank() -> None:
    shared = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
    local = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
    model = keras.Sequential([shared, local])
    # Neither layer has weights yet.
    model.compile(hvd.PartialDistributedOptimizer(sgd(), local_layers=local), lambda _, y: y)
    fit(model)
    assert [float(w[0, 0]) for w in model.weights] == [1 - REDUCED, 1 - 0.5]


def test_one_clear_sentence_about_xla() -> None:
    optimizer = hvd.DistributedOptimizer(sgd())
    with pytest.raises(UsageError, match="use jit_compile=False"):
        linear(optimizer=optimizer, jit_compile=True)
    (variable,) = linear().weights
    step = tf.function(lambda g: optimizer.apply([g], [variable]), jit_compile=True)
    with pytest.raises(UsageError, match="use jit_compile=False"):
        step(tf.constant([[1.0]]))


def test_auto_means_no_xla(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keras.Model, "_resolve_auto_jit_compile", lambda _: True)
    assert linear(optimizer=sgd()).jit_compile is True, "as on a host with a GPU"
    model = linear(optimizer=hvd.DistributedOptimizer(sgd()))
    assert model.jit_compile is False
    assert fit(model) == -REDUCED
    assert linear(optimizer=sgd()).jit_compile is True, "other models are compiled as ever"


def test_what_old_tutorials_told_everybody_to_write() -> None:
    compiling._warn_of_obsolete.cache_clear()
    optimizers = [hvd.DistributedOptimizer(sgd()), hvd.DistributedOptimizer(sgd()), sgd()]
    with pytest.warns(UserWarning, match="experimental_run_tf_function=...\\) has no") as caught:
        models = [linear(optimizer=o, experimental_run_tf_function=False) for o in optimizers]
    assert [warning.filename for warning in caught] == [__file__], "once"
    assert fit(models[0]) == -REDUCED


def test_wrong_arguments_of_compile_are_told_by_keras() -> None:
    model = linear(optimizer=hvd.DistributedOptimizer(sgd()))
    with pytest.raises(TypeError, match="unexpected keyword argument 'lossy'") as caught:
        model.compile(model.optimizer, lossy=1)
    files = [str(entry.path) for entry in caught.traceback]
    assert not any(path.endswith("inspect.py") for path in files)
    assert caught.value.__context__ is None


def test_mixed_precision_scales_between_reduction_and_step(two_ranks: RecordingOps) -> None:
    optimizer = hvd.DistributedOptimizer(sgd())
    layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros", dtype="mixed_float16")
    model = keras.Sequential([keras.Input((1,)), layer])
    model.dtype_policy = keras.DTypePolicy("mixed_float16")
    model.compile(optimizer, lambda _, y: y)
    assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    assert fit(model) == -REDUCED
    assert set(two_ranks.names) == {"DistributedSGD_Allreduce.0.kernel"}
    assert int(optimizer.iterations) == 1, "the given optimizer is the inner one"


def test_a_step_is_skipped_by_the_reduced_gradients() -> None:
    scaler = keras.optimizers.LossScaleOptimizer(sgd(), initial_scale=8.0)
    optimizer = hvd.DistributedOptimizer(scaler)
    variable = tf.Variable(0.0)
    for gradient, moved, scale in [(8.0, -REDUCED, 8.0), (np.inf, -REDUCED, 4.0)]:
        optimizer.apply([tf.constant(gradient, tf.float32)], [variable])
        assert (float(variable), float(optimizer.dynamic_scale)) == (moved, scale)


def test_a_loss_scale_around_a_distributed_optimizer_is_refused() -> None:
    scaler = keras.optimizers.LossScaleOptimizer(hvd.DistributedOptimizer(sgd()))
    with pytest.raises(UsageError, match="turn them around"):
        scaler.apply([tf.constant(1.0)], [tf.Variable(0.0)])
    with pytest.raises(UsageError, match="turn them around"):
        hvd.DistributedOptimizer(scaler)


def test_both_interfaces_take_their_own_order_of_arguments(two_ranks: RecordingOps) -> None:
    common = ("name", "cpu:0", "cpu:1", "thing", True, 2.0, hvd.Average)
    orders = [
        hvd.DistributedOptimizer(sgd(), *common, 0, 3),
        tf_hvd.DistributedOptimizer(sgd(), *common, 1, False, 0, 3),
    ]
    for optimizer in orders:
        settings = optimizer.wrapping.settings
        assert (settings.name, settings.groups, settings.predivide_factor) == ("name", 3, 2.0)
        assert (settings.device_dense, settings.device_sparse) == ("cpu:0", "cpu:1")
        assert (settings.compression, settings.sparse_as_dense) == ("thing", True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"op": hvd.Adasum}, "op=Adasum is not possible"),
        ({"op": hvd.Sum, "gradient_predivide_factor": 2.0}, "gradient_predivide_factor needs"),
        ({"groups": -1}, "groups=-1"),
        ({"backward_passes_per_step": 0}, "backward_passes_per_step=0"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        hvd.DistributedOptimizer(sgd(), **arguments)


def test_wrong_optimizers() -> None:
    with pytest.raises(UsageError, match=r"builtins\.str is no optimizer"):
        hvd.DistributedOptimizer("sgd")
    with pytest.raises(UsageError, match="already"):
        hvd.DistributedOptimizer(hvd.DistributedOptimizer(sgd()))
    with pytest.raises(UsageError, match="only one of them"):
        hvd.DistributedOptimizer(sgd(gradient_accumulation_steps=2), backward_passes_per_step=2)


def test_wrong_calls_fail_as_those_of_keras() -> None:
    optimizer = hvd.DistributedOptimizer(sgd())
    with pytest.raises(ValueError, match="must already be built"):
        optimizer.apply([tf.constant(1.0)])
    optimizer.apply([], [])
    with pytest.warns(DeprecationWarning, match="use groups") as caught:
        hvd.DistributedOptimizer(sgd(), num_groups=2)
    assert caught[0].filename == __file__
