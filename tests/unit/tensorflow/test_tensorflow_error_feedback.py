"""Error feedback in TensorFlow and its Keras: tapes and optimizers, eager and in graphs."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import horovod.tensorflow as hvd
from horovod.testing import run_ranks

STEPS = 20
HOSTS = [1, 1]


def _values(rank: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(rank).standard_normal(700).astype(np.float32)


EXACT = (_values(0) + _values(1)) / 2
# A rounding error of each of two steps, of at most half a step of int8 for the values here.
CLOSE = 2 * np.abs(_values(0)).max() / 127


def _by_tape(in_graph: bool) -> np.ndarray[Any, Any]:
    hvd.init()
    variables = [tf.Variable(tf.zeros(700)), tf.Variable(tf.zeros([7, 100]))]
    own = tf.constant(_values(hvd.rank()))

    def step() -> None:
        with tf.GradientTape() as plain:
            loss = tf.reduce_sum(variables[0] * own)
            loss += tf.reduce_sum(variables[1] * tf.reshape(own, [7, 100]))
        tape = hvd.DistributedGradientTape(plain, compression=hvd.Compression.int8)
        for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
            variable.assign_add(gradient)

    run = tf.function(step) if in_graph else step
    for _ in range(STEPS):
        run()
    return np.stack([each.numpy().reshape(-1) for each in variables])


@pytest.mark.parametrize("in_graph", [False, True])
def test_a_tape_makes_up_for_the_rounding(in_graph: bool) -> None:
    first, second = run_ranks(2, _by_tape, in_graph, hosts=HOSTS)
    assert np.array_equal(first, second)
    errors = np.abs(first - STEPS * EXACT).max(axis=1)
    assert (errors > 0).all()
    assert (errors < CLOSE).all()


def _by_optimizer(in_graph: bool, passes: int) -> np.ndarray[Any, Any]:
    hvd.init()
    variable = keras.Variable(np.zeros(700, np.float32))
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.SGD(1.0), compression=hvd.Compression.int8,
        backward_passes_per_step=passes, average_aggregated_gradients=True,
    )  # fmt: skip
    optimizer.build([variable])
    own = tf.constant(-_values(hvd.rank()))

    def step() -> None:
        optimizer.apply([own], [variable])

    run = tf.function(step) if in_graph else step
    for _ in range(STEPS * passes):
        run()
    values: np.ndarray[Any, Any] = np.asarray(variable.value)
    return values


@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("in_graph", [False, True])
def test_an_optimizer_of_keras_makes_up_for_the_rounding(in_graph: bool, passes: int) -> None:
    first, second = run_ranks(2, _by_optimizer, in_graph, passes, hosts=HOSTS)
    assert np.array_equal(first, second)
    assert 0 < np.abs(first - STEPS * EXACT).max() < CLOSE


def _after_infinity() -> list[np.ndarray[Any, Any]]:
    hvd.init()
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.SGD(1.0), compression=hvd.Compression.int8
    )
    variables = [tf.Variable(tf.zeros(700)), tf.Variable(tf.zeros(4))]
    values = _values(hvd.rank())
    reduced = optimizer._allreduce(
        [tf.constant(values), tf.constant([1.0, 2, 3, np.inf])], variables
    )
    again = optimizer._allreduce([tf.constant(values), tf.ones(4)], variables)
    assert np.isinf(reduced[1].numpy()[3])
    return [reduced[0].numpy(), again[0].numpy()]


def test_a_gradient_that_no_step_can_use_leaves_no_errors() -> None:
    for first, again in run_ranks(2, _after_infinity, hosts=HOSTS):
        assert np.array_equal(first, again)


def _in_second_job() -> bool:
    hvd.init()
    with tf.GradientTape() as plain:
        variable = tf.Variable(tf.zeros(700))
        loss = tf.reduce_sum(variable * tf.constant(_values(hvd.rank())))
    tape = hvd.DistributedGradientTape(plain, compression=hvd.Compression.int8)
    (first,) = tape.gradient(loss, [variable])
    kept_by, *errors = tape._reducer._feedback.variables
    assert int(kept_by) == hvd.rank()
    assert len(errors) == 1
    assert float(tf.reduce_max(tf.abs(errors[0]))) > 0
    tape._reducer._feedback.begin_in_job_of(tape._reducer._feedback._context)
    again = tape._reducer.reduce([tf.constant(_values(hvd.rank()))], [variable])[0]
    return bool(np.array_equal(first.numpy(), again.numpy()))


def test_errors_begin_at_zero_in_a_new_job() -> None:
    assert run_ranks(2, _in_second_job, hosts=HOSTS) == [True, True]


def _forgets_variables() -> int:
    hvd.init()
    variable = tf.Variable(tf.zeros(3))
    feedback = hvd.DistributedGradientTape(
        tf.GradientTape(), compression=hvd.Compression.int8
    )._reducer._feedback
    feedback.of([variable, tf.zeros(3)], [tf.zeros(3), tf.zeros(3)])
    assert len(feedback._errors) == 1
    del variable
    return len(feedback._errors)


def test_errors_live_as_long_as_their_variables() -> None:
    assert run_ranks(1, _forgets_variables) == [0]
