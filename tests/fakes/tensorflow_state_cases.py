"""What must hold of variables, objects, optimizers and layers on three ranks at once.

Each case runs on every rank and asserts; :func:`run_cases` runs all of them in one job, as it takes
TensorFlow longer to start than these to run.
"""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow_sessions import RECIPES, batch, build, train_alone, train_in_session

import horovod.tensorflow as hvd

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

v1 = tf.compat.v1
DTYPES = ("float32", "float64", "float16", "bfloat16", "int32", "int64", "uint8", "int8", "bool")

CASES: dict[str, Callable[[], None]] = {}


def case(function: Callable[[], None]) -> Callable[[], None]:
    CASES[function.__name__] = function
    return function


def run_cases() -> dict[str, str]:
    """Runs all cases on this rank; returns tracebacks by the names of those that failed.

    A rank that fails alone may leave the others in the middle of something. So it ends its job,
    which lets them go on with an error, and the cases behind are not run.
    """
    hvd.init()
    failed: dict[str, str] = {}
    for name, function in CASES.items():
        if failed:
            failed[name] = "not run, as a case before it failed"
            continue
        try:
            function()
        except Exception:
            failed[name] = traceback.format_exc()
            hvd.shutdown()
    hvd.shutdown()
    return failed


def of_root(values: Any, root_rank: int) -> list[Any]:
    return list(hvd.broadcast_object(values, root_rank, name="expected"))


def assert_same_everywhere(values: Sequence[Any]) -> None:
    everyones = hvd.allgather_object([np.asarray(value) for value in values], name="compared")
    for values_of_rank in everyones:
        for mine, other in zip(values, values_of_rank, strict=True):
            np.testing.assert_array_equal(mine, other)


def mixed_variables() -> list[Any]:
    numbers = np.arange(hvd.rank(), hvd.rank() + 6).reshape(2, 3)
    variables = [tf.Variable(tf.cast(numbers, dtype), name=f"v_{dtype}") for dtype in DTYPES]
    variables += [tf.Variable(float(hvd.rank())), keras.Variable(numbers, dtype="float32")]
    return [*variables, tf.Variable(tf.zeros([0, 2]))]


@case
def variables_are_broadcast_eagerly() -> None:
    for inplace in (False, True):
        variables = mixed_variables()
        expected = of_root([v.numpy() for v in variables], 1)
        assert hvd.broadcast_variables(variables, root_rank=1, inplace=inplace) is None
        for variable, value in zip(variables, expected, strict=True):
            np.testing.assert_array_equal(variable.numpy(), value)
    hvd.broadcast_variables([], root_rank=0)


@case
def variables_are_broadcast_in_functions() -> None:
    variables = mixed_variables()
    expected = of_root([v.numpy() for v in variables], 2)

    @tf.function
    def begin() -> tf.Tensor:
        hvd.broadcast_variables(variables, root_rank=2)
        return tf.identity(variables[0])

    np.testing.assert_array_equal(begin(), expected[0])
    for variable, value in zip(variables, expected, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)


@case
def two_hundred_variables_are_in_flight_at_once() -> None:
    order = list(range(200))
    variables = [tf.Variable(np.full(50, float(hvd.rank() + i))) for i in order]
    hvd.broadcast_variables(variables, root_rank=2)
    np.testing.assert_array_equal([v.numpy()[7] for v in variables], [2.0 + i for i in order])


@case
def variables_are_broadcast_within_a_set() -> None:
    outer = hvd.add_process_set([0, 2])
    variable = tf.Variable([hvd.rank(), 1])
    if outer.included():
        hvd.broadcast_variables([variable], root_rank=2, process_set=outer)
        assert variable.numpy().tolist() == [2, 1]
    else:
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"rank 1 .*not a member"):
            hvd.broadcast_variables([variable], root_rank=2, process_set=outer)
        assert variable.numpy().tolist() == [1, 1]
    hvd.remove_process_set(outer)


@case
def global_variables_are_broadcast_in_sessions() -> None:
    for inplace in (False, True):
        with tf.Graph().as_default(), v1.Session() as session:
            variables = mixed_variables_of_a_graph()
            session.run(v1.global_variables_initializer())
            expected = of_root(session.run(variables), 1)
            session.run(hvd.broadcast_variables(variables, 1, inplace=inplace))
            for mine, value in zip(session.run(variables), expected, strict=True):
                np.testing.assert_array_equal(mine, value)
            session.run(v1.global_variables_initializer())
            session.run(hvd.broadcast_global_variables(2))
            assert_same_everywhere(session.run(variables))


def mixed_variables_of_a_graph() -> list[Any]:
    numbers = np.arange(hvd.rank(), hvd.rank() + 4)
    # One of them is of the kind that TensorFlow 1 had.
    variables = [v1.get_variable("old", initializer=tf.constant(numbers), use_resource=False)]
    return variables + [
        v1.get_variable(f"v_{dtype}", initializer=tf.cast(numbers, dtype)) for dtype in DTYPES
    ]


@case
def a_hook_serves_one_graph_after_the_other() -> None:
    hook = hvd.BroadcastGlobalVariablesHook(1, device="/cpu:0")
    for scale in (1.0, 10.0):
        with tf.Graph().as_default():
            v1.train.get_or_create_global_step()
            variable = v1.get_variable("v", initializer=tf.constant(scale * hvd.rank()))
            with v1.train.MonitoredTrainingSession(hooks=[hook]) as session:
                assert session.run(variable) == scale


@case
def objects_travel_in_every_mode() -> None:
    mine = [1] * hvd.rank()
    from_two = hvd.broadcast_object_fn(root_rank=2, name="fn")

    def check(session: Any = None) -> None:
        assert hvd.broadcast_object(mine, 1, session=session) == [1]
        assert hvd.broadcast_object_fn(1, session=session)(mine) == [1]
        assert from_two(hvd.rank()) == 2
        assert hvd.allgather_object(mine, session=session) == [[], [1], [1, 1]]

    check()
    with tf.Graph().as_default(), v1.Session() as session:
        check(session)
        check()


@case
def divergence_is_found_eagerly_and_in_sessions() -> None:
    keras.utils.set_random_seed(7)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4), keras.layers.Dense(2)])
    hvd.check_in_sync(model)
    model.layers[1].kernel.assign_add(np.eye(4, 2) * (hvd.rank() == 2))
    with pytest.raises(hvd.ReplicasDivergedError) as found:
        hvd.check_in_sync(model)
    assert found.value.ranks == ((2,),)
    assert found.value.tensors[0].endswith(f"{model.layers[1].name}/kernel")
    with tf.Graph().as_default(), v1.Session() as session:
        variable = v1.get_variable("v", initializer=tf.constant([1, hvd.rank()]))
        session.run(v1.global_variables_initializer())
        with pytest.raises(hvd.ReplicasDivergedError, match="'v' on ranks 1, 2"):
            hvd.check_in_sync([variable])
        session.run(hvd.broadcast_global_variables(0))
        hvd.check_in_sync({"renamed": variable}, session=session)


@case
def ranks_that_disagree_about_a_variable_are_told() -> None:
    variable = tf.Variable(tf.zeros([2 + (hvd.rank() == 1)]))
    shapes = r"is float32 \(2,\) on ranks 0, 2, float32 \(3,\) on rank 1\."
    with pytest.raises(tf.errors.FailedPreconditionError, match=rf"'Variable:0' {shapes}"):
        hvd.broadcast_variables([variable], root_rank=0)


@case
def a_variable_that_a_rank_lacks_is_named() -> None:
    variables = [tf.Variable(0.0, name=name) for name in ("first", "last")]
    found = r"'last:0' is float32 \(\) on ranks 0, 1, missing on rank 2\."
    with pytest.raises(tf.errors.FailedPreconditionError, match=found):
        hvd.broadcast_variables(variables[: 1 + (hvd.rank() != 2)], 0)


def check_training(name: str) -> None:
    recipe = RECIPES[name]
    weights, global_step = train_in_session(recipe)
    assert global_step == 5 * recipe.passes
    for mine, expected in zip(weights, train_alone(3, recipe), strict=True):
        np.testing.assert_allclose(mine, expected, rtol=1e-9)
    assert_same_everywhere(weights)


for _name in RECIPES:
    CASES[f"training: {_name}"] = lambda name=_name: check_training(name)  # type: ignore[misc]


def gradients_of(rank: int, step: int = 0) -> list[Any]:
    """Of one rank's batch alone, at the weights of seed 0."""
    with tf.Graph().as_default(), v1.Session() as session:
        x, y, loss = build(0)
        grads = v1.gradients(loss, v1.trainable_variables())
        session.run(v1.global_variables_initializer())
        return list(session.run(grads, dict(zip((x, y), batch(rank, step), strict=True))))


def reduced_gradients(register: Sequence[int] = (), **options: Any) -> list[Any]:
    """What compute_gradients of a wrapped optimizer returns for this rank's batch."""
    with tf.Graph().as_default(), v1.Session() as session:
        x, y, loss = build(0)
        plain = v1.train.GradientDescentOptimizer(1.0)
        optimizer = hvd.DistributedOptimizer(plain, **options)
        for index in register:
            optimizer.register_local_var(v1.trainable_variables()[index])
        pairs = optimizer.compute_gradients(loss, v1.trainable_variables())
        session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
        fed = dict(zip((x, y), batch(hvd.rank(), 0), strict=True))
        return list(session.run([grad for grad, _ in pairs], fed))


def assert_close(found: Sequence[Any], expected: Sequence[Any]) -> None:
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-15)


@case
def ranks_outside_of_a_set_keep_their_gradients() -> None:
    everyones = [gradients_of(rank) for rank in range(3)]
    outer = hvd.add_process_set([0, 2])
    found = reduced_gradients(process_set=outer)
    of_members = [(a + c) / 2 for a, c in zip(everyones[0], everyones[2], strict=True)]
    assert_close(found, of_members if outer.included() else everyones[1])
    hvd.remove_process_set(outer)


@case
def local_variables_keep_their_gradients() -> None:
    everyones = [gradients_of(rank) for rank in range(3)]
    means = [sum(grads) / 3 for grads in zip(*everyones, strict=True)]
    mine = everyones[hvd.rank()]
    for options in ({}, {"op": hvd.Sum}):
        factor = 3 if options else 1
        shared = [mean * factor for mean in means]
        found = reduced_gradients(register=[1], **options)
        assert_close(found, [shared[0], mine[1] / 3, shared[2]])
    found = reduced_gradients(register=[0, 1], scale_local_gradients=False)
    assert_close(found, [mine[0], mine[1], means[2]])


@case
def the_gradients_of_single_passes_are_this_ranks() -> None:
    """In the first of two passes nothing is reduced, and no variable changes."""
    with tf.Graph().as_default(), v1.Session() as session:
        x, y, loss = build(0)
        variables = v1.trainable_variables()
        optimizer = hvd.DistributedOptimizer(
            v1.train.GradientDescentOptimizer(1.0), backward_passes_per_step=2
        )
        pairs = optimizer.compute_gradients(loss)
        step_op = optimizer.apply_gradients(pairs)
        session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
        before = session.run(variables)
        fed = dict(zip((x, y), batch(hvd.rank(), 0), strict=True))
        for _ in range(2):
            assert_close(session.run(variables), before)
            grads, _ = session.run([[grad for grad, _ in pairs], step_op], fed)
            everyones = [gradients_of(rank) for rank in range(3)]
            if _ == 0:
                assert_close(grads, everyones[hvd.rank()])
        means = [2 * sum(grads) / 3 for grads in zip(*everyones, strict=True)]
        assert_close(grads, means)
        expected = [old - mean for old, mean in zip(before, means, strict=True)]
        assert_close(session.run(variables), expected)


def adasum(a: Any, b: Any) -> Any:
    a_part = 1 - np.vdot(a, b) / (2 * np.vdot(a, a))
    b_part = 1 - np.vdot(a, b) / (2 * np.vdot(b, b))
    return a_part * a + b_part * b


@case
def steps_are_combined_by_adasum() -> None:
    pair = hvd.add_process_set([0, 1])
    for passes in (1, 2):
        if pair.included():
            found, before = delta_steps(passes, pair)
            # The gradients of the second pass are those at the weights after the first.
            changes = [own_change(rank, passes) for rank in (0, 1)]
            expected = [
                old + adasum(*both)
                for old, both in zip(before, zip(*changes, strict=True), strict=True)
            ]
            assert_close(found, expected)
    hvd.remove_process_set(pair)
    assert_same_everywhere(delta_steps(2, hvd.global_process_set)[0])


def delta_steps(passes: int, process_set: hvd.ProcessSet) -> tuple[list[Any], list[Any]]:
    with tf.Graph().as_default(), v1.Session() as session:
        x, y, loss = build(0)
        optimizer = hvd.DistributedOptimizer(
            v1.train.GradientDescentOptimizer(0.1),
            op=hvd.Adasum,
            backward_passes_per_step=passes,
            process_set=process_set,
        )
        step_op = optimizer.minimize(loss)
        variables = v1.trainable_variables()
        session.run(v1.global_variables_initializer())
        before = session.run(variables)
        for step in range(passes):
            fed = dict(zip((x, y), batch(hvd.rank(), step), strict=True))
            session.run(step_op, fed)
        starts = [optimizer.get_slot(var, "delta_start") for var in variables]
        assert_close(session.run(starts), session.run(variables))
        return session.run(variables), before


def own_change(rank: int, passes: int) -> list[Any]:
    """What a rank's own steps change."""
    with tf.Graph().as_default(), v1.Session() as session:
        x, y, loss = build(0)
        step_op = v1.train.GradientDescentOptimizer(0.1).minimize(loss)
        session.run(v1.global_variables_initializer())
        before = session.run(v1.trainable_variables())
        for step in range(passes):
            session.run(step_op, dict(zip((x, y), batch(rank, step), strict=True)))
        after = session.run(v1.trainable_variables())
        return [new - old for new, old in zip(after, before, strict=True)]
