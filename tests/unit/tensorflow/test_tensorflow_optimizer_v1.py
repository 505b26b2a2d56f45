"""Optimizers of tf.compat.v1 and the aggregation of gradients, in a job of one rank."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import tensorflow as tf

import horovod.tensorflow as hvd
from horovod.errors import UsageError
from horovod.tensorflow.gradient_aggregation import LocalGradientAggregationHelper

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.usefixtures("alone")

v1 = tf.compat.v1


@pytest.fixture
def session() -> Iterator[Any]:
    with tf.Graph().as_default(), v1.Session() as session:
        yield session


def initialize(session: Any) -> None:
    session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])


class Aggregation:
    """A helper over two variables whose gradients are fed; reductions multiply by 10."""

    def __init__(self, session: Any, passes: int = 3, **options: Any) -> None:
        self.session = session
        self.variables = [v1.get_variable(name, initializer=[1.0, 2.0]) for name in ("a", "b")]
        self.global_step = v1.train.get_or_create_global_step()
        self.fed = [v1.placeholder(tf.float32, [2]) for _ in self.variables]
        arguments = {"sparse_as_dense": False, "average_aggregated_gradients": False} | options
        self.helper = LocalGradientAggregationHelper(
            passes,
            lambda grads, vars: [10.0 * grad for grad in grads],
            rank=0,
            optimizer_type=LocalGradientAggregationHelper._OPTIMIZER_TYPE_LEGACY,
            **arguments,
        )

    def build(self) -> None:
        optimizer = v1.train.GradientDescentOptimizer(1.0)
        self.grads = self.helper.compute_gradients([*self.fed, None], [*self.variables, None])
        pairs = list(zip(self.grads, self.variables, strict=False))
        self.step_op = self.helper.apply_gradients(
            lambda: optimizer.apply_gradients(pairs, global_step=self.global_step),
            optimizer,
            pairs,
            global_step=self.global_step,
        )
        initialize(self.session)

    def run(self, *values: float) -> tuple[list[Any], int, int]:
        """One pass; what compute_gradients returned for it, the counter, and the global step."""
        fed = {place: [value, value] for place, value in zip(self.fed, values, strict=True)}
        grads, _ = self.session.run([self.grads[:2], self.step_op], fed)
        counter, step = self.session.run([self.helper.counter, self.global_step])
        return [float(grad[0]) for grad in grads], int(counter), int(step)


def test_every_third_pass_is_reduced_and_applied(session: Any) -> None:
    aggregation = Aggregation(session)
    aggregation.build()
    assert aggregation.grads[2] is None
    for begin in (0, 3):
        assert aggregation.run(1.0, 2.0) == ([1.0, 2.0], 1, begin + 1)
        assert aggregation.run(3.0, 4.0) == ([3.0, 4.0], 2, begin + 2)
        before = session.run(aggregation.variables[0])[0]
        assert aggregation.run(5.0, 6.0) == ([90.0, 120.0], 0, begin + 3)
        assert session.run(aggregation.variables[0])[0] == before - 90.0


def test_what_is_not_a_number_does_not_stay_in_the_sums(session: Any) -> None:
    aggregation = Aggregation(session, passes=2)
    aggregation.build()
    aggregation.run(float("nan"), float("inf"))
    grads, _, _ = aggregation.run(1.0, 1.0)
    assert not np.isfinite(grads).any()
    aggregation.run(1.0, 2.0)
    assert aggregation.run(1.0, 2.0)[0] == [20.0, 40.0]


def test_the_mean_of_the_passes(session: Any) -> None:
    aggregation = Aggregation(session, passes=2, average_aggregated_gradients=True)
    aggregation.build()
    aggregation.run(1.0, 2.0)
    assert aggregation.run(3.0, 6.0)[0] == [20.0, 40.0]


def test_local_variables_are_summed_but_not_reduced(session: Any) -> None:
    aggregation = Aggregation(session, passes=2)
    aggregation.helper.register_local_var(aggregation.variables[1])
    aggregation.build()
    aggregation.run(1.0, 2.0)
    assert aggregation.run(3.0, 6.0)[0] == [40.0, 8.0]


def test_variables_of_the_aggregation(session: Any) -> None:
    aggregation = Aggregation(session, name="mine")
    aggregation.build()
    names = [variable.name for variable in v1.local_variables()]
    assert names == [
        f"aggregation_variables_mine0/{name}:0"
        for name in ("aggregation_counter", "sum_of_a", "sum_of_b")
    ]
    assert len(v1.get_collection("aggregating_collection")) == 2
    assert not {variable.name for variable in v1.trainable_variables()} & set(names)


def test_two_optimizers_of_one_name_count_for_themselves(session: Any) -> None:
    variables = [v1.get_variable(name, initializer=[1.0]) for name in ("a", "b")]
    steps = []
    for variable in variables:
        optimizer = hvd.DistributedOptimizer(
            v1.train.GradientDescentOptimizer(0.5), backward_passes_per_step=2
        )
        steps.append(optimizer.minimize(tf.reduce_sum(variable), var_list=[variable]))
    initialize(session)
    session.run(steps)
    session.run(steps[0])
    assert [value.tolist() for value in session.run(variables)] == [[0.0], [1.0]]


def test_sums_for_keras_begin_at_once(session: Any) -> None:
    variable = v1.get_variable("v", initializer=[1.0])
    helper = LocalGradientAggregationHelper(
        2,
        lambda grads, vars: grads,
        False,
        False,
        0,
        LocalGradientAggregationHelper._OPTIMIZER_TYPE_KERAS,
    )
    (grad,) = helper.compute_gradients([tf.constant([3.0])], [variable])
    assert [session.run(grad)[0] for _ in range(4)] == [3.0, 6.0, 3.0, 6.0]


def test_sparse_gradients_are_added_as_dense_ones(session: Any) -> None:
    table = v1.get_variable("table", initializer=tf.ones([4, 2]))
    loss = tf.reduce_sum(tf.nn.embedding_lookup(table, [1, 1, 3]))

    def first_gradient(**options: Any) -> Any:
        optimizer = hvd.DistributedOptimizer(
            v1.train.GradientDescentOptimizer(1.0), backward_passes_per_step=2, **options
        )
        return optimizer.compute_gradients(loss)[0][0]

    with pytest.raises(ValueError, match=r"'table:0' is sparse.*sparse_as_dense=True"):
        first_gradient()
    grad = first_gradient(sparse_as_dense=True)
    initialize(session)
    assert session.run(grad)[:, 0].tolist() == [0.0, 2.0, 0.0, 1.0]
    assert session.run(grad)[:, 0].tolist() == [0.0, 4.0, 0.0, 2.0]


@pytest.mark.parametrize("passes", [0, -1])
def test_there_is_at_least_one_pass(passes: int) -> None:
    with pytest.raises(ValueError, match="backward_passes_per_step"):
        hvd.DistributedOptimizer(
            v1.train.GradientDescentOptimizer(1.0), backward_passes_per_step=passes
        )
    with pytest.raises(ValueError, match="backward_passes_per_step"):
        LocalGradientAggregationHelper(passes, lambda grads, vars: grads, False, False, 0, "")


def test_gradients_come_before_steps(session: Any) -> None:
    aggregation = Aggregation(session)
    with pytest.raises(UsageError, match="compute_gradients"):
        aggregation.helper.apply_gradients(lambda: None, None, [])


def test_what_does_not_work_eagerly_is_refused() -> None:
    plain = v1.train.GradientDescentOptimizer(1.0)
    with pytest.raises(ValueError, match="graphs only"):
        hvd.DistributedOptimizer(plain, backward_passes_per_step=2)
    with pytest.raises(ValueError, match="graphs only"):
        hvd.DistributedOptimizer(plain, op=hvd.Adasum).apply_gradients([])


def test_adasum_adds_up_no_gradients() -> None:
    with pytest.raises(ValueError, match="average_aggregated_gradients"):
        hvd.DistributedOptimizer(
            v1.train.GradientDescentOptimizer(1.0),
            op=hvd.Adasum,
            backward_passes_per_step=2,
            average_aggregated_gradients=True,
        )


def test_the_wrapper_is_an_optimizer_and_shows_the_slots_of_the_other(session: Any) -> None:
    variable = v1.get_variable("v", initializer=[1.0])
    plain = v1.train.MomentumOptimizer(1.0, 0.5)
    optimizer = hvd.DistributedOptimizer(plain)
    assert isinstance(optimizer, v1.train.Optimizer)
    assert optimizer.get_name() == "DistributedMomentumOptimizer"
    assert hvd.DistributedOptimizer(plain, name="mine").get_name() == "mine"
    optimizer.minimize(tf.square(variable))
    assert optimizer.get_slot_names() == ["momentum"]
    assert optimizer.get_slot(variable, "momentum") is plain.get_slot(variable, "momentum")
    assert optimizer.variables() == plain.variables()
    assert len(optimizer.variables()) == 1


def test_slots_of_the_adasum_form(session: Any) -> None:
    variable = v1.get_variable("v", initializer=[4.0])
    plain = v1.train.MomentumOptimizer(0.5, 0.5)
    optimizer = hvd.DistributedOptimizer(plain, op=hvd.Adasum, backward_passes_per_step=2)
    assert optimizer.get_name() == "DistributedDeltaMomentumOptimizer"
    global_step = v1.train.get_or_create_global_step()
    step_op = optimizer.minimize(tf.square(variable), global_step=global_step)
    assert optimizer.get_slot_names() == ["delta_start", "momentum"]
    assert optimizer.get_slot(variable, "momentum") is plain.get_slot(variable, "momentum")
    names = sorted(held.name.split("/")[-1] for held in optimizer.variables())
    assert names == ["DistributedDeltaMomentumOptimizer:0", "Momentum:0", "step_count:0"]
    initialize(session)
    start = optimizer.get_slot(variable, "delta_start")
    for expected in ((0.0, 4.0), (-2.0, -2.0)):
        session.run(step_op)
        assert (session.run(variable)[0], session.run(start)[0]) == expected
    assert session.run(global_step) == 2


def test_eager_steps_work_without_a_graph() -> None:
    variable = tf.Variable([3.0])
    optimizer = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(0.5))
    optimizer.minimize(lambda: tf.reduce_sum(tf.square(variable)), var_list=[variable])
    assert variable.numpy().tolist() == [0.0]


def test_a_loss_of_nothing_has_no_gradients(session: Any) -> None:
    unused = v1.get_variable("unused", initializer=[1.0])
    used = v1.get_variable("used", initializer=[1.0])
    optimizer = hvd.DistributedOptimizer(
        v1.train.GradientDescentOptimizer(1.0), backward_passes_per_step=2
    )
    pairs = optimizer.compute_gradients(tf.square(used), [unused, used])
    assert pairs[0] == (None, unused)
    optimizer.apply_gradients(pairs)
    initialize(session)
    assert session.run(pairs[1][0]).tolist() == [2.0]
