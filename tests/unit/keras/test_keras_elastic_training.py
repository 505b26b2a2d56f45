"""Elastic ``model.fit`` of both generations of Keras, with workers that are threads."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from elastic_threads import PATIENCE_S, Died, elastic_threads

import horovod.keras as hvd
from horovod._train.elastic.checkpoint.commits import Commits
from horovod.errors import UsageError
from horovod.keras.elastic import MappedIndices, Training

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

tf_keras = pytest.importorskip("tf_keras")

LENGTH, BATCH_SIZE, EPOCHS = 23, 2, 3
# The number of a batch, for what happens when the epoch ends.
AT_END = 6


@pytest.fixture(params=[keras, tf_keras], ids=["3", "2"])
def any_keras(request: pytest.FixtureRequest) -> Any:
    return request.param


def counting_model(of: Any) -> Any:
    """Its weights count, for each sample, in how many means over a step it was."""
    layer = of.layers.Embedding(LENGTH, 1, embeddings_initializer="zeros")
    model = of.Sequential([of.Input((1,), dtype="int64"), layer])
    optimizer = hvd.DistributedOptimizer(of.optimizers.SGD(1.0), sparse_as_dense=True)
    model.compile(optimizer, lambda _, y: -y, metrics=["mae"])
    return model


class Happens:
    """What a test does at some batches, as a callback of any Keras."""

    def __init__(self, of: Any, happens: Callable[[int, int], None], log: Any) -> None:
        class Callback(of.callbacks.Callback):  # type: ignore[misc]
            def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
                self.epoch = epoch

            def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
                happens(self.epoch, batch)

            def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
                log.steps.append((hvd.size(), total_of(self.epoch, log.steps)))

            def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
                happens(epoch, AT_END)
                if "ends" in vars(log):
                    log.ends.append(epoch)

        self.callback = Callback()


def total_of(epoch: int, steps: Any) -> int:
    return epoch


def fit(of: Any, happens: Callable[[int, int], None], data: Any, **options: Any) -> Any:
    """Fits; returns the weight of each sample, the sizes of all steps, the epochs that ended."""
    model = counting_model(of)
    training = Training(model, **options)
    values = training.track(steps=[], ends=[])
    history = model.fit(
        training.dataset(data, BATCH_SIZE),
        initial_epoch=training.epoch,
        epochs=EPOCHS,
        shuffle=False,
        verbose=0,
        validation_data=DATA,
        callbacks=[
            Happens(of, happens, values).callback,
            hvd.callbacks.MetricAverageCallback(),
            hvd.callbacks.BroadcastGlobalVariablesCallback(0),
            training,
        ],
    )
    assert len(history.history["val_mae"]) == len(history.epoch)
    return model.get_weights()[0].ravel(), values.steps, values.ends, history.epoch


DATA = (np.arange(LENGTH)[:, None], np.zeros((LENGTH, 1), np.float32))
MAPPED = MappedIndices(LENGTH, lambda place: (place[None], tf.zeros(1)))


def expected_weights(steps: Any) -> Any:
    """Each sample counts once in each epoch, in the mean over the samples of its step."""
    from horovod._train.elastic.ledger import order_of

    weights = np.zeros(LENGTH)
    first, epoch = 0, 0
    for size, _ in steps:
        samples = list(order_of(LENGTH, epoch)[first : first + size * BATCH_SIZE])
        weights[samples] += 1 / len(samples)
        first += len(samples)
        if first == LENGTH:
            first, epoch = 0, epoch + 1
    assert (first, epoch) == (0, EPOCHS)
    return weights


def is_first_generation() -> bool:
    return hvd.elastic.generation() == 0


@pytest.mark.parametrize("data", [DATA, MAPPED], ids=["arrays", "mapped"])
def test_one_rank_sees_each_sample_once(alone: None, any_keras: Any, data: Any) -> None:
    weights, steps, ends, _ = fit(any_keras, lambda epoch, batch: None, data)
    assert len(steps) == 12 * EPOCHS
    assert ends == list(range(EPOCHS))
    assert weights == pytest.approx(expected_weights(steps))


@pytest.mark.parametrize("at", [(0, 0), (0, 2), (1, 5), (1, AT_END), (2, AT_END)])
def test_a_loss_repeats_the_steps_since_the_commit(any_keras: Any, at: tuple[int, int]) -> None:
    def happens(epoch: int, batch: int) -> None:
        if is_first_generation() and (epoch, batch) == at and hvd.rank() == 0:
            raise Died

    with elastic_threads() as fleet:
        workers = fleet.start(lambda: fit(any_keras, happens, DATA, commit_every_s=3600), 2)
        fleet.begin([0, 1])
        with pytest.raises(Died):
            workers[0].result(PATIENCE_S)
        fleet.begin([1])
        weights, steps, ends, epochs = workers[1].result(PATIENCE_S)
    complete = at[0] + (at[1] == AT_END)
    assert [size for size, _ in steps] == [2] * 6 * complete + [1] * 12 * (EPOCHS - complete)
    assert weights == pytest.approx(expected_weights(steps))
    assert ends == epochs == list(range(EPOCHS))


@pytest.mark.parametrize("at", [(0, 2), (0, 5)])
def test_a_newcomer_comes_and_an_old_one_dies(any_keras: Any, at: tuple[int, int]) -> None:
    """In the middle of an epoch, and at its last batch."""

    def happens(epoch: int, batch: int) -> None:
        if is_first_generation() and (epoch, batch) == at:
            fleet.await_generation(1)
        if hvd.elastic.generation() == 1 and (epoch, batch) == (2, 1) and hvd.rank() == 1:
            raise Died

    with elastic_threads() as fleet:
        workers = fleet.start(lambda: fit(any_keras, happens, DATA, commit_every_s=0), 2)
        fleet.begin([0, 1])
        fleet.await_waiting(2)
        workers += fleet.start(lambda: fit(any_keras, happens, DATA, commit_every_s=0))
        fleet.begin([0, 1, 2])
        with pytest.raises(Died):
            workers[1].result(PATIENCE_S)
        fleet.begin([0, 2])
        results = [workers[slot].result(PATIENCE_S) for slot in (0, 2)]
    old, new = results
    assert old[0].tolist() == new[0].tolist()
    assert old[1:3] == new[1:3]
    before = at[1] + 1
    sizes = [2] * before + [3] * -(-(LENGTH - 4 * before) // 6) if at[1] < 5 else [2] * 6
    sizes += [3] * 4 + [3] + [2] * 5
    assert [size for size, _ in old[1]] == sizes
    assert old[0] == pytest.approx(expected_weights(old[1]))
    assert old[2] == old[3] == list(range(EPOCHS))
    assert new[3] == list(range(0 if at[1] < 5 else 1, EPOCHS))


def test_newcomers_have_the_learning_rates_of_the_others(any_keras: Any) -> None:
    """Although Keras counts their batches from the middle of an epoch."""

    def train() -> Any:
        model = counting_model(any_keras)
        training = Training(model, commit_every_s=0)
        values = training.track(rates=[])

        def begin(batch: int, logs: Any) -> None:
            if is_first_generation() and batch == 2:
                fleet.await_generation(1)

        watch = any_keras.callbacks.LambdaCallback(
            on_train_batch_begin=begin,
            on_train_batch_end=lambda batch, logs: values.rates.append(
                float(model.optimizer.learning_rate)
            ),
        )
        warmup = hvd.callbacks.LearningRateWarmupCallback(1.0, 2)
        model.fit(
            training.dataset(DATA, BATCH_SIZE), initial_epoch=training.epoch, epochs=2,
            shuffle=False, verbose=0, callbacks=[warmup, watch, training],
        )  # fmt: skip
        return values.rates

    with elastic_threads() as fleet:
        workers = fleet.start(train, 2)
        fleet.begin([0, 1])
        fleet.await_waiting(2)
        workers += fleet.start(train)
        fleet.begin([0, 1, 2])
        first, *others = [worker.result(PATIENCE_S) for worker in workers]
    assert others == [first] * 2
    assert len(first) == 3 + 2 + 4
    assert first[-1] == pytest.approx(1.0)


def test_stopping_stays_stopped(alone: None, any_keras: Any) -> None:
    model = counting_model(any_keras)
    training = Training(model)
    stop = any_keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: setattr(model, "stop_training", epoch == 1)
    )
    data = training.dataset(DATA, 4)
    history = model.fit(data, epochs=9, shuffle=False, verbose=0, callbacks=[stop, training])
    assert history.epoch == [0, 1]
    assert training.epoch == 2
    options = {"shuffle": False, "verbose": 0, "callbacks": [training]}
    history = model.fit(data, initial_epoch=2, epochs=3, **options)
    assert history.epoch == [2]


def test_a_py_dataset_is_trained_by_its_batches(alone: None, any_keras: Any) -> None:
    sequence = getattr(any_keras.utils, "PyDataset", any_keras.utils.Sequence)

    class Batches(sequence):  # type: ignore[misc]
        def __len__(self) -> int:
            return 6

        def __getitem__(self, index: int) -> Any:
            places = np.arange(LENGTH)[4 * index : 4 * index + 4]
            return places[:, None], np.zeros((len(places), 1), np.float32)

    model = counting_model(any_keras)
    training = Training(model)
    data = training.dataset(Batches())
    model.fit(data, epochs=2, shuffle=False, verbose=0, callbacks=[training])
    weights = [2 / 4] * 20 + [2 / 3] * 3
    assert model.get_weights()[0].ravel() == pytest.approx(weights)


def test_all_ranks_stop_when_one_does(any_keras: Any) -> None:
    def train() -> Any:
        model = counting_model(any_keras)
        training = Training(model)

        def end(epoch: int, logs: Any) -> None:
            model.stop_training = epoch == 1 and hvd.rank() == 1

        stop = any_keras.callbacks.LambdaCallback(on_epoch_end=end)
        data = training.dataset(DATA, 4)
        return model.fit(data, epochs=9, shuffle=False, verbose=0, callbacks=[stop, training]).epoch

    with elastic_threads() as fleet:
        workers = fleet.start(train, 2)
        fleet.begin([0, 1])
        assert [worker.result(PATIENCE_S) for worker in workers] == [[0, 1]] * 2


@pytest.mark.parametrize("differs", ["seed", "batch_size"])
def test_ranks_with_other_orders_or_batches_are_refused(any_keras: Any, differs: str) -> None:
    def train() -> None:
        model = counting_model(any_keras)
        training = Training(model)
        epoch = training.epoch  # joins the job, which gives the rank
        how = {"seed": 0, "batch_size": 4} | {differs: 2 + hvd.rank()}
        data = training.dataset(DATA, **how)
        model.fit(data, initial_epoch=epoch, shuffle=False, verbose=0, callbacks=[training])

    with elastic_threads() as fleet:
        workers = fleet.start(train, 2)
        fleet.begin([0, 1])
        for worker in workers:
            with pytest.raises(UsageError, match="different data or orders"):
                worker.result(PATIENCE_S)


class Samples:
    """Some of them cannot be read."""

    def __init__(self, can_be_read: Callable[[], bool]) -> None:
        self._can_be_read = can_be_read

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> Any:
        if not self._can_be_read():
            raise OSError("the disk is gone")
        return np.array([index]), np.zeros(1, np.float32)


def test_fit_goes_on_from_the_commits_in_files(
    any_keras: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOROVOD_CHECKPOINT_DIR", str(tmp_path))

    def train(fails_at: int) -> Any:
        model = counting_model(any_keras)
        training = Training(model, commit_every_s=0)
        values = training.track(steps=[])
        samples = Samples(lambda: len(values.steps) != fails_at)
        try:
            model.fit(
                training.dataset(samples, BATCH_SIZE),
                initial_epoch=training.epoch,
                epochs=EPOCHS,
                shuffle=False,
                verbose=0,
                callbacks=[Happens(any_keras, lambda *_: None, values).callback, training],
            )
        finally:
            writes = "horovod-checkpoint" in {thread.name for thread in threading.enumerate()}
            assert hvd.rank() != 0 or not writes
        return model.get_weights()[0].ravel(), values.steps

    def job(size: int, fails_at: int) -> list[Any]:
        with elastic_threads() as fleet:
            workers = fleet.start(lambda: train(fails_at), size)
            fleet.begin(range(size))
            return [worker.result(PATIENCE_S) for worker in workers]

    write = Commits._write

    def write_slowly(self: Commits, snapshot: Any) -> None:
        time.sleep(0.2)
        write(self, snapshot)

    with monkeypatch.context() as patch:
        patch.setattr(Commits, "_write", write_slowly)
        with pytest.raises(tf.errors.OpError, match="the disk is gone"):
            job(2, 8)
    for weights, steps in job(3, -1):
        assert [size for size, _ in steps] == [2] * 8 + [3] * (3 + 4)
        assert weights == pytest.approx(expected_weights(steps))


def test_wrong_uses_say_so(alone: None, any_keras: Any) -> None:
    model = counting_model(any_keras)
    training = Training(model)
    with pytest.raises(UsageError, match="without samples"):
        training.dataset((np.zeros((0, 1)), np.zeros((0, 1))), 4)
    options = {"shuffle": False, "verbose": 0, "callbacks": [training]}
    with pytest.raises(UsageError, match=r"training\.dataset"):
        model.fit(*DATA, **options)
    data = training.dataset(DATA, 4)
    with pytest.raises(UsageError, match=r"initial_epoch=training\.epoch"):
        model.fit(data, initial_epoch=1, epochs=2, **options)
    if any_keras is keras:
        with pytest.raises(UsageError, match="class_weight"):
            model.fit(data, **options, class_weight={0: 1.0})
        model.compile(model.optimizer, lambda _, y: -y, steps_per_execution=2)
        with pytest.raises(UsageError, match="steps_per_execution"):
            model.fit(data, **options)
