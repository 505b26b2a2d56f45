"""Elastic states of variables, eager and in sessions; errors of operations. A job of one rank."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import tensorflow as tf

import horovod.tensorflow as hvd
from horovod._rank import context
from horovod.errors import PeerLostError, UsageError
from horovod.tensorflow.elastic import ObjectState, TensorFlowKerasState, TensorFlowState, run

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("alone")

v1 = tf.compat.v1


def test_variables_go_back_to_the_commit_as_the_same_objects() -> None:
    kinds = [tf.Variable([1.0, 2.0]), tf.Variable(True), tf.Variable(3, dtype=tf.int64)]
    kinds.append(tf.Variable([0.5], dtype=tf.bfloat16))
    counter = tf.Variable(0)
    state = TensorFlowState(kinds, counter=counter, epoch=0)
    state.sync()
    for variable in kinds:
        variable.assign(tf.zeros_like(variable))
    state.epoch = 1
    counter.assign_add(1)
    state.save()
    for variable in kinds:
        variable.assign(tf.ones_like(variable))
    state.epoch = 2
    counter.assign_add(1)
    state.restore()
    assert [np.ravel(v.numpy()).tolist() for v in kinds] == [[0, 0], [False], [0], [0]]
    assert state.counter is counter
    assert (int(counter), state.epoch) == (1, 1)


def test_snapshots_that_somebody_holds_do_not_change() -> None:
    variables = [tf.Variable([0.0, 0.0]), tf.Variable(0.0), tf.Variable([0.0], dtype=tf.bfloat16)]
    state = TensorFlowState(variables)
    handler = state._handlers["variables"]
    held = []
    for step in range(8):
        for variable in variables:
            variable.assign(tf.fill(variable.shape, tf.cast(step, variable.dtype)))
        state.save()
        if step % 3 == 0:
            held.append((step, handler.snapshot()))
        if step % 4 == 1:  # memory of the snapshot may be that of the variables now
            state.restore()
            state.save()
            state.save()
        for variable in variables:
            assert set(np.ravel(variable.numpy()).tolist()) == {step}
            variable.assign(tf.zeros_like(variable))
        state.restore()
        for variable in variables:
            assert set(np.ravel(variable.numpy()).tolist()) == {step}
        for seen, arrays in held:
            assert {float(each) for array in arrays for each in np.ravel(array)} == {seen}


def test_a_snapshot_that_nobody_holds_is_written_over() -> None:
    variables = [tf.Variable([0.0, 0.0])]
    state = TensorFlowState(variables)
    seen = set()
    for _ in range(6):
        state.save()
        seen.add(state._handlers["variables"].snapshot()[0].ctypes.data)
    assert len(seen) == 2


def test_eager_mode_has_no_global_variables() -> None:
    with pytest.raises(UsageError, match="variables="):
        TensorFlowState()


def test_a_model_and_optimizers_are_kept() -> None:
    keras = tf.keras
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1), keras.layers.Dropout(0.5)])
    optimizer, other = keras.optimizers.SGD(0.1, momentum=0.9), keras.optimizers.SGD(0.1)
    with pytest.raises(UsageError, match="build"):
        TensorFlowKerasState(model, optimizer, other=other)
    state = TensorFlowKerasState(model, optimizer, batch=3)
    kernel = model.trainable_variables[0]
    committed = kernel.numpy()
    for _ in range(2):
        optimizer.apply_gradients([(tf.ones_like(v), v) for v in model.trainable_variables])
    state.restore()
    np.testing.assert_array_equal(kernel.numpy(), committed)
    assert int(optimizer.iterations) == 0
    assert state.batch == 3


def test_a_session_and_its_finalized_graph_outlive_a_reset() -> None:
    with tf.Graph().as_default() as graph:
        weight = v1.get_variable("w", initializer=1.0)
        old = v1.get_variable("old", initializer=[1.0, 2.0], use_resource=False)
        step = tf.group(weight.assign_add(hvd.allreduce(tf.constant(1.0))), old.assign_add([1, 1]))
        start = v1.global_variables_initializer()
        graph.finalize()
    session = v1.Session(graph=graph)
    with graph.as_default():
        state = TensorFlowState(session=session, batch=0)  # before its variables have values
    session.run(start)
    calls = []

    @run
    def train(state: Any) -> list[Any]:
        calls.append(session.run([weight, old]))
        session.run(step)
        state.commit()
        session.run(step)
        if len(calls) == 1:
            raise PeerLostError("rank 1 is gone")
        return list(session.run([weight, old]))

    weight_at_last, old_at_last = train(state)
    assert [(w, o.tolist()) for w, o in calls] == [(1.0, [1.0, 2.0]), (2.0, [2.0, 3.0])]
    assert (weight_at_last, old_at_last.tolist()) == (4.0, [4.0, 5.0])
    session.close()


def test_a_graph_without_a_session_is_explained() -> None:
    with tf.Graph().as_default():
        v1.get_variable("w", initializer=1.0)
        state = TensorFlowState()
        with pytest.raises(tf.errors.FailedPreconditionError, match="session="):
            state.save()
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            state.save()


@pytest.mark.parametrize(
    "kind", [tf.errors.UnknownError, tf.errors.InternalError, tf.errors.CancelledError]
)
def test_errors_of_tensorflow_that_are_not_ours_propagate(kind: Any) -> None:
    @run
    def train(state: ObjectState) -> None:
        raise kind(None, None, "HorovodAllreduce failed with [1]: said by somebody else")

    with pytest.raises(kind, match="somebody else"):
        train(ObjectState(hvd.broadcast_object, hvd.rank))


def test_an_operation_of_a_job_that_was_left_is_one_of_ours() -> None:
    seen = []

    @run
    def train(state: ObjectState) -> int:
        seen.append(hvd.size())
        if len(seen) == 1:
            context.global_group().engine.close("as a lost rank would end it")
            hvd.allreduce(tf.constant(1.0))
        return len(seen)

    state = ObjectState(hvd.broadcast_object, hvd.rank, epoch=0)
    assert train(state) == 2


def test_a_restarted_job_has_all_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOROVOD_CHECKPOINT_DIR", str(tmp_path))
    hvd.shutdown()
    hvd.init()

    def job(steps: int) -> tuple[list[Any], int]:
        keras = tf.keras
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        optimizer = keras.optimizers.Adam(0.1)
        rate = tf.Variable([0.5], dtype=tf.bfloat16)
        state = TensorFlowKerasState(model, optimizer, rate=rate, batch=0)

        @run
        def train(state: Any) -> None:
            for _ in range(steps):
                variables = state.model.trainable_variables
                state.optimizer.apply_gradients([(tf.ones_like(v), v) for v in variables])
                state.rate.assign_add([0.5])
                state.batch += 1
                state.commit()

        train(state)
        kept = [*model.weights, *optimizer.variables, rate]
        return [np.asarray(variable).tolist() for variable in kept], state.batch

    def process(steps: int) -> tuple[list[Any], int]:
        """Its first state is the first one of the process."""
        states = context.PerContext(itertools.count)
        monkeypatch.setattr("horovod._train.elastic.run._states", states)
        return job(steps)

    trained = process(3)
    assert process(0) == trained
    assert trained[1] == 3
    for file in tmp_path.glob("commit-*"):
        file.unlink()
    assert process(0) != trained
