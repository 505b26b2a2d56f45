"""SyncBatchNormalization on three ranks against BatchNormalization on all of their rows."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tensorflow_state_cases import assert_same_everywhere, case, run_cases

import horovod.tensorflow as hvd

# Rows of the ranks; one of them has none.
SHARES = (slice(0, 3), slice(3, 3), slice(3, 10))


def rows(*shape: int, dtype: str = "float64") -> Any:
    """The batch of all ranks, far away from zero."""
    return (np.random.default_rng(5).normal(size=(10, *shape)) * 3 + 100).astype(dtype)


def results_of(layer: Any, x: Any, weights: Any, mask: Any = None) -> dict[str, Any]:
    """Output, gradients and moving averages of a step of a layer."""
    inputs = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        outputs = layer(inputs, training=True, mask=mask)
        loss = tf.reduce_sum(tf.square(outputs) * weights)
    trained = [variable.value for variable in layer.trainable_variables]
    of_inputs, *others = tape.gradient(loss, [inputs, *trained])
    moving = [variable.value for variable in layer.non_trainable_variables]
    return {"outputs": outputs, "of_inputs": of_inputs, "of_parameters": others, "moving": moving}


def check_layer(
    shape: tuple[int, ...],
    axis: int = -1,
    dtype: str = "float64",
    in_function: bool = False,
    masked: bool = False,
) -> None:
    share = SHARES[hvd.rank()]
    x = rows(*shape, dtype=dtype)
    weights = np.random.default_rng(6).normal(size=x.shape).astype(dtype)
    mask = np.random.default_rng(7).random(x.shape[:-1]) < 0.6 if masked else None
    options = {"axis": axis, "dtype": dtype, "epsilon": 1e-3, "momentum": 0.7}
    synchronized = hvd.SyncBatchNormalization(**options)
    plain = keras.layers.BatchNormalization(**options)
    for layer in (synchronized, plain):
        layer.build(x.shape)

    def step() -> dict[str, Any]:
        own_mask = None if mask is None else mask[share]
        return results_of(synchronized, x[share], weights[share], own_mask)

    found = tf.function(step)() if in_function else step()
    expected = results_of(plain, x, weights, mask)
    tolerance = {"float64": 1e-9, "float32": 2e-4}[dtype] if not masked else 1e-6
    for name in ("outputs", "of_inputs"):
        close(found[name], expected[name][share], tolerance)
    for mine, other in zip(found["moving"], expected["moving"], strict=True):
        close(mine, other, tolerance)
    assert_same_everywhere(found["moving"])
    sums = [
        hvd.allreduce(grad, op=hvd.Sum, name=f"p{i}")
        for i, grad in enumerate(found["of_parameters"])
    ]
    for mine, other in zip(sums, expected["of_parameters"], strict=True):
        close(mine, other, tolerance)


def close(found: Any, expected: Any, tolerance: float) -> None:
    found, expected = np.asarray(found), np.asarray(expected)
    scale = max(1.0, np.abs(expected).max(initial=0.0))
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance * scale)


@case
def batches_of_all_ranks_are_normalized_together() -> None:
    check_layer((5,))
    check_layer((4, 4, 3))
    check_layer((3, 4, 4), axis=1)
    check_layer((5,), dtype="float32")
    check_layer((6, 5), masked=True)


@case
def they_are_in_functions_too() -> None:
    check_layer((5,), in_function=True)
    check_layer((4, 4, 3), in_function=True, dtype="float32")


@case
def a_layer_may_be_used_twice_in_a_graph() -> None:
    layer = hvd.SyncBatchNormalization(dtype="float64")
    layer.build((None, 5))
    x = rows(5)[SHARES[hvd.rank()]]

    @tf.function
    def both() -> tuple[Any, Any]:
        return layer(x, training=True), layer(2 * x, training=True)

    plain = keras.layers.BatchNormalization(dtype="float64")
    expected = plain(rows(5), training=True)[SHARES[hvd.rank()]]
    once, twice = both()
    close(once, expected, 1e-9)
    close(twice, expected, 1e-3)  # the epsilon weighs less


@case
def a_model_that_holds_it_can_be_fitted() -> None:
    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [keras.Input((5,)), hvd.SyncBatchNormalization(), keras.layers.Dense(1)]
    )
    model.compile(keras.optimizers.SGD(0.0), "mse")
    x = rows(5, dtype="float32")[hvd.rank() :: 3][:3]
    model.fit(x, x[:, :1], batch_size=3, epochs=2, verbose=0)
    moving = [variable.numpy() for variable in model.layers[0].non_trainable_variables]
    assert np.abs(moving[0]).min() > 1.0
    assert_same_everywhere(moving)


@case
def ranks_outside_of_a_set_normalize_alone() -> None:
    outer = hvd.add_process_set([0, 2])
    layer = hvd.SyncBatchNormalization(process_set=outer, dtype="float64")
    plain = keras.layers.BatchNormalization(dtype="float64")
    x = rows(5)
    parts = [x[0:2], x[2:4], x[4:8]]
    joint = np.concatenate([parts[0], parts[2]])
    found = layer(parts[hvd.rank()], training=True)
    if outer.included():
        expected = plain(joint, training=True)
        close(found, expected[:2] if hvd.rank() == 0 else expected[2:], 1e-9)
    else:
        close(found, plain(parts[1], training=True), 1e-9)
    hvd.remove_process_set(outer)


def run_all() -> dict[str, str]:
    """The cases of this file and of tensorflow_state_cases."""
    return run_cases()
