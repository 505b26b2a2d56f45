"""Variables, objects and comparisons in a job of one rank: arguments, modes and errors."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import horovod.tensorflow as hvd
from horovod.errors import UsageError
from horovod.tensorflow.sync_check import _named_variables

pytestmark = pytest.mark.usefixtures("alone")

v1 = tf.compat.v1


def operations_of(graph: Any, kind: str) -> list[str]:
    return [operation.name for operation in graph.get_operations() if operation.type == kind]


@pytest.mark.parametrize("inplace", [False, True])
def test_variables_of_one_rank_stay_as_they_are(inplace: bool) -> None:
    variables = [tf.Variable([1.0, 2.0]), tf.Variable(True), keras.Variable([3, 4], dtype="int32")]
    hvd.broadcast_variables(iter(variables), 0, inplace=inplace)
    assert [v.numpy().tolist() for v in variables] == [[1.0, 2.0], True, [3, 4]]


@pytest.mark.parametrize("value", [3.0, tf.constant(1.0), None])
def test_what_is_no_variable_is_refused(value: Any) -> None:
    with pytest.raises(UsageError, match="not a variable"):
        hvd.broadcast_variables([value], 0)


def test_text_is_refused() -> None:
    with pytest.raises(UsageError, match="'words:0' is of dtype string"):
        hvd.broadcast_variables([tf.Variable("a", name="words")], 0)


def test_global_variables_are_those_of_a_graph() -> None:
    with pytest.raises(RuntimeError, match=r"hvd\.broadcast_variables"):
        hvd.broadcast_global_variables(0)
    with tf.Graph().as_default() as graph, v1.Session() as session:
        variables = [v1.get_variable(name, initializer=[1.0, 2.0]) for name in ("a/b", "c")]
        operation = hvd.broadcast_global_variables(0)
        assert isinstance(operation, tf.Operation)
        session.run(v1.global_variables_initializer())
        session.run(operation)
        assert session.run(variables[1]).tolist() == [1.0, 2.0]
        assert len(operations_of(graph, "AssignVariableOp")) == 4, "initializers and broadcasts"


def test_the_hook_adds_its_operation_once_to_each_graph() -> None:
    hook = hvd.BroadcastGlobalVariablesHook(0)
    sizes = []
    for _ in range(2):
        with tf.Graph().as_default() as graph:
            v1.get_variable("v", initializer=1.0)
            hook.begin()
            sizes.append(len(graph.get_operations()))
            hook.begin()
            assert len(graph.get_operations()) == sizes[-1]
    assert sizes[0] == sizes[1]


def test_names_of_what_is_compared() -> None:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, name="one")], name="net")
    names = [name for name, _ in _named_variables(model)]
    assert names == ["net/one/kernel", "net/one/bias"]
    twice = [tf.Variable(1.0, name="v"), tf.Variable(2.0, name="v")]
    assert [name for name, _ in _named_variables(twice)] == ["v", "v.2"]
    assert [name for name, _ in _named_variables({"mine": twice[0]})] == ["mine"]
    optimizer = keras.optimizers.SGD(momentum=0.9)
    optimizer.build(model.trainable_variables)
    assert len(list(_named_variables(optimizer))) == 4  # iterations, learning rate, two momenta


def test_everything_with_variables_can_be_compared() -> None:
    module = tf.Module()
    module.weights = [tf.Variable(np.ones(3)), tf.Variable(tf.zeros([2], tf.bfloat16))]
    for values in (module, module.weights, module.weights[0], {"w": module.weights[1]}):
        hvd.check_in_sync(values)
    with tf.Graph().as_default(), v1.Session() as session:
        loss = tf.square(v1.get_variable("v", initializer=1.0))
        optimizer = hvd.DistributedOptimizer(v1.train.MomentumOptimizer(0.1, 0.9))
        optimizer.minimize(loss)
        session.run(v1.global_variables_initializer())
        assert [name for name, _ in _named_variables(optimizer)] == ["v/Momentum"]
        hvd.check_in_sync(optimizer)


@pytest.mark.parametrize("values", [3, "text", np.ones(2), tf.constant(1.0), [1.0]])
def test_what_cannot_be_compared_is_refused(values: Any) -> None:
    with pytest.raises(UsageError):
        hvd.check_in_sync(values)


def test_variables_of_a_graph_need_a_session() -> None:
    with tf.Graph().as_default():
        variable = v1.get_variable("v", initializer=1.0)
        with pytest.raises(UsageError, match="session"):
            hvd.check_in_sync([variable])
