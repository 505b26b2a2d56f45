"""What else Keras 2 does between two ranks; each function runs on every rank, and asserts."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from keras2_training import FITS, assert_alike, fits, keras

import horovod.keras as hvd
import horovod.tensorflow as tensorflow_hvd

KINDS = (keras.optimizers, keras.optimizers.legacy)


def everything() -> list[str]:
    """All cases of a job of two ranks; returns their names."""
    tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    hvd.init()
    done = fits()
    keras.backend.set_floatx("float32")
    for case in CASES:
        case()
        done.append(case.__name__)
    hvd.shutdown()
    return done


def expected_names() -> list[str]:
    return [*FITS, *(case.__name__ for case in CASES)]


def layers_and_process_sets() -> None:
    alone = hvd.add_process_set([1])
    for kinds in KINDS:
        layers = [keras.layers.Dense(1, use_bias=False) for _ in range(2)]
        for layer in layers:
            layer.build((1, 1))
            layer.kernel.assign([[0.0]])
        kernels = [layer.kernel for layer in layers]
        gradient = 10.0 ** hvd.rank() * tf.ones((1, 1))
        optimizer = hvd.PartialDistributedOptimizer(kinds.SGD(1.0), local_layers=layers[1])
        optimizer.apply_gradients([(gradient, kernel) for kernel in kernels])
        assert [-float(k[0, 0]) for k in kernels] == [5.5, 10.0 ** hvd.rank() / 2]
        of_a_set = hvd.DistributedOptimizer(kinds.SGD(1.0), process_set=alone)
        of_a_set.minimize(lambda: gradient * kernels[0], kernels[:1])  # noqa: B023
        assert -float(kernels[0][0, 0]) == 5.5 + 10.0 ** hvd.rank()
    hvd.remove_process_set(alone)


def an_infinite_gradient_of_one_rank() -> None:
    """Both ranks skip the step and halve the scale."""
    for kinds in KINDS:
        scaler = keras.mixed_precision.LossScaleOptimizer(kinds.SGD(1.0), initial_scale=8.0)
        optimizer = hvd.DistributedOptimizer(scaler)
        variable = tf.Variable(0.0)
        for gradient in (np.inf if hvd.rank() == 1 else 1.0, 4.0 * hvd.rank()):
            optimizer.apply_gradients([(tf.constant(gradient, tf.float32), variable)])
        assert (float(variable), float(optimizer.loss_scale)) == (-2.0, 4.0)


def learning_rates() -> None:
    """Warm-up, then a staircase, with averaged logs."""
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.8, momentum=0.9)), "mse")
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.LearningRateWarmupCallback(0.8, warmup_epochs=2),
        hvd.callbacks.LearningRateScheduleCallback(0.8, 0.5, start_epoch=2),
        hvd.callbacks.MetricAverageCallback(),
    ]
    x = np.zeros((8, 1))
    logs = model.fit(x, x, batch_size=4, epochs=4, verbose=0, callbacks=callbacks).history
    np.testing.assert_allclose(logs["lr"], [0.6, 0.8, 0.8, 0.4], rtol=1e-6)


def one_rank_loads_the_model() -> None:
    """The root goes on from a file; the others, whose model is not even built, follow."""
    for kinds in KINDS:
        layers = [keras.layers.Dense(3, activation="tanh"), keras.layers.Dense(1)]
        model = keras.Sequential(layers)
        model.compile(hvd.DistributedOptimizer(kinds.Adam(0.2)), "mse")
        x = np.random.default_rng(hvd.rank()).normal(size=(8, 2))
        if hvd.rank() == 0:
            model = loaded_model(kinds, layers, x)
        callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
        model.fit(x, x[:, :1], batch_size=4, epochs=2, verbose=0, callbacks=[callback])
        state = [*model.get_weights(), *(v.numpy() for v in model.optimizer.variables)]
        state.append(model.optimizer.learning_rate.numpy())
        assert int(model.optimizer.iterations) == 1 + 4
        np.testing.assert_allclose(state[-1], 0.1)
        assert_alike(state)


def loaded_model(kinds: Any, layers: list[Any], x: np.ndarray) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        saved = keras.Sequential([keras.Input((2,)), *layers])
        saved.compile(kinds.Adam(0.1), "mse")
        saved.fit(x, x[:, :1], verbose=0)
        saved.save(Path(folder) / "model.h5")
        return hvd.load_model(Path(folder) / "model.h5")


def batches_are_normalized_together() -> None:
    if not issubclass(tensorflow_hvd.SyncBatchNormalization, keras.layers.Layer):
        return  # tf.keras is Keras 3
    parts = [np.random.default_rng(r).normal(r, 1 + r, (4 + r, 3, 2)) for r in range(2)]
    for axis in (-1, [1, 2]):
        layer = tensorflow_hvd.SyncBatchNormalization(axis=axis, dtype="float64")
        joint = keras.layers.BatchNormalization(axis=axis, dtype="float64", fused=False)
        mine = layer(parts[hvd.rank()], training=True)
        all_of_them = joint(np.concatenate(parts), training=True)
        np.testing.assert_allclose(mine, tf.split(all_of_them, [4, 5])[hvd.rank()], rtol=1e-9)
        for own, other in zip(layer.get_weights(), joint.get_weights(), strict=True):
            np.testing.assert_allclose(own, other, rtol=1e-9)


def a_graph_of_version_1() -> None:
    """As scripts have it that disable eager execution; it stays so, and comes last."""
    if not issubclass(tf.keras.Model, keras.Model):
        return  # tf.keras is Keras 3
    tf.compat.v1.disable_eager_execution()
    model = keras.Sequential([keras.layers.Dense(1, input_shape=(2,))])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.legacy.SGD(0.1, momentum=0.9)), "mse")
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        hvd.callbacks.LearningRateScheduleCallback(0.1, 0.5),
    ]
    x = np.random.default_rng(hvd.rank()).normal(size=(8, 2)).astype(np.float32)
    logs = model.fit(x, x[:, :1], batch_size=4, epochs=3, verbose=0, callbacks=callbacks).history
    np.testing.assert_allclose(logs["lr"], [0.1, 0.05, 0.025], rtol=1e-6)
    weights = np.concatenate([weight.ravel() for weight in model.get_weights()])
    both = hvd.allgather(weights[np.newaxis])
    np.testing.assert_array_equal(both[0], both[1])


CASES = (
    layers_and_process_sets,
    an_infinite_gradient_of_one_rank,
    learning_rates,
    one_rank_loads_the_model,
    batches_are_normalized_together,
    a_graph_of_version_1,
)
