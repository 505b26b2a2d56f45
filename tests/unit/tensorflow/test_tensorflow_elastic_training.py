"""The simple way of elastic training in TensorFlow, with workers that are threads."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from elastic_threads import PATIENCE_S, Died, elastic_threads

import horovod.tensorflow as hvd
from horovod._train.elastic.ledger import order_of
from horovod.errors import PeerLostError, UsageError
from horovod.tensorflow.elastic import MappedIndices, Training

if TYPE_CHECKING:
    from collections.abc import Callable

LENGTH, BATCH_SIZE, EPOCHS = 31, 2, 2


def is_first_generation() -> bool:
    return hvd.elastic.generation() == 0


def count(happens: Callable[[int, int], None], data: Any) -> tuple[list[float], list[int]]:
    """Trains with a tape; returns how often each sample was used, and the sizes of all steps."""
    times = tf.Variable(tf.zeros(LENGTH, tf.float64))
    training = Training(times=times, commit_every_s=3600.0)
    values = training.track(sizes=[])

    @tf.function(reduce_retracing=True)
    def step(indices: Any, real: Any) -> None:
        with tf.GradientTape() as tape:
            loss = -tf.reduce_sum(tf.gather(times, indices)) * real
        tape = hvd.DistributedGradientTape(tape, op=hvd.Sum, sparse_as_dense=True)
        times.assign_sub(tape.gradient(loss, times))

    for epoch in training.epochs(EPOCHS):
        for number, indices in enumerate(training.batches(data, BATCH_SIZE)):
            happens(epoch, number)
            with training.guard():
                step(indices, tf.constant(float(training.samples > 0), tf.float64))
            values.sizes.append(hvd.size())
    return times.numpy().tolist(), values.sizes


@pytest.mark.parametrize("data", [np.arange(LENGTH), MappedIndices(LENGTH, lambda index: index)])
def test_each_sample_once_with_a_loss_and_a_newcomer(data: Any) -> None:
    def happens(epoch: int, step: int) -> None:
        if is_first_generation() and (epoch, step) == (0, 3):
            fleet.await_generation(1)
        if hvd.elastic.generation() == 1 and (epoch, step) == (1, 2) and hvd.rank() == 0:
            raise Died

    with elastic_threads() as fleet:
        workers = fleet.start(lambda: count(happens, data), 2)
        fleet.begin([0, 1])
        fleet.await_waiting(2)
        workers += fleet.start(lambda: count(happens, data))
        fleet.begin([0, 1, 2])
        with pytest.raises(Died):
            workers[0].result(PATIENCE_S)
        fleet.begin([1, 2])
        results = [worker.result(PATIENCE_S) for worker in workers[1:]]
    for times, sizes in results:
        assert times == [EPOCHS] * LENGTH
        # 4 steps of 4 samples, the other 15 by 6; then 31 by 4, back to the commit of the epoch.
        assert sizes == [2] * 4 + [3] * 3 + [2] * 8


INPUTS = np.random.default_rng(1).normal(size=(LENGTH, 3))
TARGETS = INPUTS.sum(1, keepdims=True) + 1


def new_model() -> tuple[Any, Any]:
    weights = tf.Variable(tf.zeros((3, 1), tf.float64), name="weights")
    return weights, keras.optimizers.SGD(0.1, momentum=0.9)


def loss_of(weights: Any, x: Any, y: Any) -> Any:
    return tf.reduce_mean(tf.square(x @ weights - y))


@pytest.mark.parametrize("reduces", ["tape", "optimizer"])
def test_the_weights_are_those_of_one_process(reduces: str) -> None:
    """The gradient of a step is the mean over its samples, however many a rank has of them."""

    def train() -> list[float]:
        variable, optimizer = new_model()
        weights = keras.Variable(variable, dtype="float64")
        if reduces == "optimizer":
            optimizer = hvd.DistributedOptimizer(optimizer)
        optimizer.build([weights])
        training = Training(optimizer=optimizer, weights=weights.value, commit_every_s=0)

        @tf.function(reduce_retracing=True)
        def step(x: Any, y: Any) -> None:
            with tf.GradientTape() as tape:
                loss = loss_of(weights.value, x, y)
            if reduces == "tape":
                tape = training.weigh(hvd.DistributedGradientTape(tape))
            optimizer.apply_gradients([(tape.gradient(loss, weights.value), weights)])

        for epoch in training.epochs(EPOCHS):
            for number, (x, y) in enumerate(training.batches((INPUTS, TARGETS), BATCH_SIZE)):
                if is_first_generation() and (epoch, number, hvd.rank()) == (1, 2, 1):
                    raise Died
                with training.guard():
                    step(x, y)
        return np.ravel(weights.numpy()).tolist()

    with elastic_threads() as fleet:
        workers = fleet.start(train, 3)
        fleet.begin([0, 1, 2])
        with pytest.raises(Died):
            workers[1].result(PATIENCE_S)
        fleet.begin([0, 2])
        results = [workers[slot].result(PATIENCE_S) for slot in (0, 2)]
    assert results[0] == results[1]
    variable, optimizer = new_model()
    weights = keras.Variable(variable, dtype="float64")
    sizes = iter([3] * (6 + 2) + [2] * 5)
    for epoch in range(EPOCHS):
        order, first = order_of(LENGTH, epoch), 0
        while first < LENGTH:
            samples = list(order[first : first + next(sizes) * BATCH_SIZE])
            first += len(samples)
            with tf.GradientTape() as tape:
                loss = loss_of(weights.value, INPUTS[samples], TARGETS[samples])
            optimizer.apply_gradients([(tape.gradient(loss, weights.value), weights)])
    assert next(sizes, None) is None
    assert results[0] == pytest.approx(np.ravel(weights.numpy()).tolist(), rel=1e-12)


def test_data_of_many_kinds(alone: None) -> None:
    training = Training()
    numbers = np.arange(4.0)
    mapped = MappedIndices(4, lambda index: tf.cast(index, tf.float64), num_parallel_calls=2)
    for data in (numbers, tf.constant(numbers), numbers.tolist(), mapped):
        first, rest = training.batches(data, 3, shuffle=False)
        assert first.numpy().tolist() == [0, 1, 2]
        assert rest.numpy().tolist() == [3]
    named = {"x": numbers, "y": tf.constant(numbers)}
    (batch,) = training.batches(named, 4, shuffle=False)
    assert {name: values.numpy().tolist() for name, values in batch.items()} == {
        "x": [0, 1, 2, 3],
        "y": [0, 1, 2, 3],
    }
    pairs = [(np.full(2, i), i) for i in range(3)]
    ((rows, labels),) = training.batches(pairs, 3, shuffle=False)
    assert rows.numpy().tolist() == [[0, 0], [1, 1], [2, 2]]
    assert labels.numpy().tolist() == [0, 1, 2]
    assert list(training.batches(MappedIndices(0, lambda index: index), 2)) == []


class Batches(keras.utils.PyDataset):
    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Any:
        return np.full(2, index), np.full(1, index)


def test_a_py_dataset_is_handed_out_by_batches(alone: None) -> None:
    training = Training()
    seen = [x.numpy().tolist() for x, _ in training.batches(Batches(), shuffle=False)]
    assert seen == [[0, 0], [1, 1], [2, 2]]
    with pytest.raises(UsageError, match="made of batches"):
        next(training.batches(Batches(), 2))


class Shuffled(Batches):
    def on_epoch_end(self) -> None:
        raise AssertionError


def test_an_epoch_end_of_a_py_dataset_that_is_not_called_is_said_once(
    alone: None, caplog: pytest.LogCaptureFixture
) -> None:
    training = Training()
    with caplog.at_level(logging.WARNING, "horovod"):
        for _ in training.epochs(2):
            for data in (Batches(), Shuffled()):
                assert len(list(training.batches(data))) == 3
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("Shuffled.on_epoch_end is not called")


def test_what_was_read_ahead_does_not_count(alone: None) -> None:
    training = Training()
    seen: list[list[int]] = []
    for batch in training.batches(MappedIndices(12, lambda index: index), 2, shuffle=False):
        seen.append(batch.numpy().tolist())
        if len(seen) == 3:
            with training.guard():
                raise PeerLostError("a rank was lost")
    firsts = [[number, number + 1] for number in range(0, 12, 2)]
    assert seen == firsts[:3] + firsts


def test_wrong_arguments_say_so(alone: None) -> None:
    training = Training()
    for wrong in (tf.data.Dataset.range(3), iter([1])):
        with pytest.raises(UsageError, match="length and an index"):
            next(training.batches(wrong, 2))
    with pytest.raises(UsageError, match="batch_size=None"):
        next(training.batches([1, 2]))
    with pytest.raises(UsageError, match=r"of \[1, 2\] samples"):
        next(training.batches((np.zeros(2), np.zeros(1)), 2))
    with pytest.raises(UsageError, match="negative"):
        MappedIndices(-1, lambda index: index)
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(), backward_passes_per_step=2)
    optimizer.build([keras.Variable(1.0)])
    with pytest.raises(UsageError, match="a step per batch"):
        Training(optimizer=optimizer)
    with pytest.raises(UsageError, match="DistributedGradientTape"):
        training.weigh(tf.GradientTape())
    with tf.Graph().as_default(), pytest.raises(UsageError, match="eager"):
        Training()
