"""Adding gradients up over several passes, in eager mode and in a tf.function."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import tensorflow as tf

from horovod._rank import context
from horovod.errors import UsageError
from horovod.tensorflow.gradient_aggregation_eager import LocalGradientAggregationHelperEager

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

FORMS: dict[str, Callable[[Any], Any]] = {
    "eager": lambda function: function,
    "function": lambda function: tf.function(function, autograph=False),
}
form = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)


def ten_times(gradients: Sequence[Any], _: Sequence[Any]) -> list[Any]:
    return [gradient * 10.0 for gradient in gradients]


def make_step(form: Callable[[Any], Any], helper: Any, *variables: Any) -> tuple[Any, Any]:
    """Returns a function that takes a step by gradients, and the iterations that it counts."""
    counters = SimpleNamespace(iterations=tf.Variable(0))

    def step(gradients: Any) -> Any:
        reached = helper.compute_gradients(gradients, variables)

        def apply() -> None:
            for variable, gradient in zip(variables, reached, strict=True):
                if gradient is not None:
                    variable.assign_sub(gradient)
            counters.iterations.assign_add(1)

        helper.apply_gradients(apply, counters)
        return reached

    return form(step), counters.iterations


@form
@pytest.mark.parametrize("average", [False, True])
def test_steps_are_taken_in_every_nth_pass(form: Callable[[Any], Any], average: bool) -> None:
    helper = LocalGradientAggregationHelperEager(3, ten_times, False, average)
    variable = tf.Variable(100.0)
    step, iterations = make_step(form, helper, variable)
    scale = 10.0 / 3.0 if average else 10.0
    values = []
    for i in range(6):
        (reached,) = step([tf.constant(float(i))])
        values.append(float(variable))
        local = sum(range(i + 1)) if i < 3 else sum(range(3, i + 1))
        expected = local * scale if i % 3 == 2 else local
        assert float(reached) == pytest.approx(expected), "running sums, then the reduced one"
        assert int(helper.counter) == (i + 1) % 3
    first, second = 100.0 - 3 * scale, 100.0 - 3 * scale - 12 * scale
    assert values == pytest.approx([100.0, 100.0, first, first, first, second], rel=1e-6)
    assert int(iterations) == 6


@form
def test_the_passes_of_an_earlier_job_are_dropped(
    form: Callable[[Any], Any], caplog: pytest.LogCaptureFixture
) -> None:
    """As in an elastic job whose newcomers have no sums, and whose loss came between two passes."""
    helper = LocalGradientAggregationHelperEager(3, ten_times)
    variable = tf.Variable(0.0)
    step, _ = make_step(form, helper, variable)
    context.init()
    try:
        step([tf.constant(100.0)])
        step([tf.constant(100.0)])
        context.shutdown()
        assert int(helper.counter) == 2
        context.init()
        assert "the job has changed after 2 of 3 passes of a step" in caplog.text
        for value in (1.0, 2.0, 3.0):
            (reached,) = step([tf.constant(value)])
        assert float(reached) == 60.0
        assert float(variable) == -60.0
    finally:
        context.shutdown()


@form
def test_an_infinite_gradient_is_gone_after_its_step(form: Callable[[Any], Any]) -> None:
    helper = LocalGradientAggregationHelperEager(2, ten_times)
    step, _ = make_step(form, helper, tf.Variable(0.0))
    for value in (1.0, float("inf")):
        (reached,) = step([tf.constant(value)])
    assert float(reached) == float("inf")
    for value in (1.0, 2.0):
        (reached,) = step([tf.constant(value)])
    assert float(reached) == 30.0


@form
def test_missing_gradients_stay_missing(form: Callable[[Any], Any]) -> None:
    helper = LocalGradientAggregationHelperEager(2, ten_times)
    step, _ = make_step(form, helper, tf.Variable(0.0), tf.Variable(5.0))
    for _ in range(2):
        missing, reached = step([None, tf.constant(1.0)])
    assert (missing, float(reached)) == (None, 20.0)


@form
def test_sparse_gradients(form: Callable[[Any], Any]) -> None:
    rows = tf.IndexedSlices(tf.constant([1.0, 2.0]), tf.constant([1, 1]), tf.constant([3]))
    table = tf.Variable([0.0, 0.0, 0.0], name="table")
    helper = LocalGradientAggregationHelperEager(2, ten_times, sparse_as_dense=True)
    step, _ = make_step(form, helper, table)
    for _ in range(2):
        step([rows])
    assert table.numpy().tolist() == [0.0, -60.0, 0.0]
    refusing = LocalGradientAggregationHelperEager(2, ten_times)
    with pytest.raises(UsageError, match="gradient of table:0 is sparse"):
        refusing.compute_gradients([rows], [table])


def test_the_global_step_counts_too() -> None:
    helper = LocalGradientAggregationHelperEager(2, ten_times)
    global_step = tf.Variable(0)
    helper.compute_gradients([tf.constant(1.0)], [tf.Variable(0.0)])
    helper.apply_gradients(lambda: None, object(), global_step=global_step)
    assert int(global_step) == 1


def test_a_function_may_be_traced_again() -> None:
    helper = LocalGradientAggregationHelperEager(2, ten_times)
    table = tf.Variable([[0.0], [0.0]])

    @tf.function(autograph=False)
    def step(rows: Any) -> Any:
        gradient = tf.reduce_sum(rows) * tf.ones([2, 1])
        return helper.compute_gradients([gradient], [table])[0]

    step(tf.ones([2]))
    assert step(tf.ones([3])).numpy().tolist() == [[50.0], [50.0]]


@pytest.mark.parametrize("passes", [0, -1])
def test_passes_must_be_positive(passes: int) -> None:
    with pytest.raises(UsageError, match=f"backward_passes_per_step={passes}"):
        LocalGradientAggregationHelperEager(passes, ten_times)
