"""What the ranks of a KerasEstimator do, without Spark: ranks are threads, or processes."""

from __future__ import annotations

import importlib.util
import itertools
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("pyspark")
keras = pytest.importorskip("keras")
import dying_rank  # noqa: E402
from spark_files import data_in, run_in, steps_of_all_ranks, with_validation  # noqa: E402

import horovod.tensorflow.keras as hvd  # noqa: E402
from horovod.errors import UsageError  # noqa: E402
from horovod.spark.common.description import flat  # noqa: E402
from horovod.spark.keras.datamodule import ParquetDataModule  # noqa: E402
from horovod.spark.keras.model_bytes import (  # noqa: E402
    OptimizerRecord,
    described_model,
    model_bytes,
    model_of,
    state_in,
    suffix_of,
)
from horovod.spark.keras.training import KerasTask, train  # noqa: E402
from horovod.testing import run_ranks  # noqa: E402

if TYPE_CHECKING:
    from pathlib import Path

RATE = 0.02


@pytest.fixture(autouse=True)
def float64() -> Any:
    policy = keras.config.dtype_policy()  # which follows floatx only until it is asked for
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    yield
    keras.config.set_floatx("float32")
    keras.config.set_dtype_policy(policy)


def make_model() -> Any:
    keras.utils.set_random_seed(0)
    return keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(5, "tanh"), keras.layers.Dense(1)]
    )


def task_in(folder: Path, **changes: Any) -> KerasTask:
    task = KerasTask(
        data=data_in(folder, ParquetDataModule),
        run=run_in(folder),
        model=model_bytes(make_model()),
        optimizer=OptimizerRecord.of(keras.optimizers.SGD(RATE, momentum=0.9)),
        compiling={"loss": "mse"},
        callbacks=[],
        checkpoint_callback=None,
        custom_objects={},
        compression=None,
        passes=1,
        label_shapes=None,
        prefetch=0,
        epochs=2,
        floatx="float64",
    )
    return replace(task, **changes)


def train_on(size: int, task: KerasTask, folder: Path) -> tuple[Any, dict[str, Any]]:
    """The trained model, compiled, and what else is in the checkpoint."""
    results = run_ranks(size, train, task)
    assert results[1:] == [None] * (size - 1)
    return loaded(results[0], task, folder)


def loaded(checkpoint: bytes, task: KerasTask, folder: Path) -> tuple[Any, dict[str, Any]]:
    path = folder / f"result{suffix_of(checkpoint)}"
    path.write_bytes(checkpoint)
    model = model_of(task.model, None, compiled=False)
    model.compile(task.optimizer.made(None), "mse")
    model.optimizer.build(model.trainable_variables)
    model.load_weights(path)
    return model, state_in(path)


def one_process(task: KerasTask, size: int, passes: int = 1) -> Any:
    """The same training on one process, whose batches are those of all ranks together."""
    model = make_model()
    optimizer = keras.optimizers.SGD(
        RATE * size, momentum=0.9, gradient_accumulation_steps=passes if passes > 1 else None
    )
    model.compile(optimizer, "mse")
    for rows in steps_of_all_ranks(task.data, size, task.epochs, whole_batches=False):
        weights = rows["w"] if task.data.weights else None
        model.train_on_batch(rows["x"], rows["y"].reshape(-1, 1), sample_weight=weights)
    return model


def assert_same(one: Any, other: Any) -> None:
    for value, wanted in zip(one.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_allclose(value, wanted, rtol=0, atol=1e-9)


def test_two_ranks_train_as_one_process_would(tmp_path: Path) -> None:
    task = task_in(tmp_path)
    model, state = train_on(2, task, tmp_path)
    assert_same(model, one_process(task, 2))
    assert state["epoch"] == 1
    assert state["learning_rate"] == RATE
    assert state["history"]["loss"][1] < state["history"]["loss"][0]
    saved = tmp_path / "runs/r/checkpoint"
    assert saved.read_bytes() == (tmp_path / "result.keras").read_bytes()
    if importlib.util.find_spec("tensorboard") is not None:
        assert any(saved.with_name("logs").rglob("events.*"))


def test_gradients_of_several_batches_are_one_step(tmp_path: Path) -> None:
    task = task_in(tmp_path, passes=2)
    assert_same(train_on(2, task, tmp_path)[0], one_process(task, 2, passes=2))


def test_the_rate_is_scaled_once_on_resume(tmp_path: Path, capsys: Any) -> None:
    task = task_in(tmp_path, epochs=1)
    first, _ = train_on(2, task, tmp_path)
    assert "nothing is trained" not in capsys.readouterr().err
    again, state = train_on(2, task, tmp_path)  # has all its epochs
    assert capsys.readouterr().err.count("run 'r' has all of its 1 epochs: nothing is trained") == 1
    assert_same(first, again)
    assert state["learning_rate"] == RATE
    resumed, state = train_on(2, replace(task, epochs=2), tmp_path)
    assert state["learning_rate"] == RATE
    assert len(state["history"]["loss"]) == 2
    assert_same(resumed, one_process(replace(task, epochs=2), 2))


def test_validation_weights_and_the_best_model(tmp_path: Path) -> None:
    rates = []

    class Worse(keras.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            rates.append(float(self.model.optimizer.learning_rate))
            if epoch == 1:
                self.model.optimizer.learning_rate = 100.0

    task = task_in(
        tmp_path,
        callbacks=[Worse()],
        checkpoint_callback=hvd.callbacks.BestModelCheckpoint(monitor="val_loss"),
    )
    task = replace(task, data=replace(with_validation(task.data, tmp_path), weights="w"))
    model, state = train_on(2, task, tmp_path)
    assert rates[:2] == [pytest.approx(2 * RATE)] * 2
    assert state["epoch"] == 0
    assert list(state["history"]) == ["loss", "val_loss"]
    assert len(state["history"]["loss"]) == 1
    assert_same(model, one_process(replace(task, callbacks=[], epochs=1), 2))


def test_weights_alone_can_be_saved(tmp_path: Path) -> None:
    checkpoint = keras.callbacks.ModelCheckpoint("x.weights.h5", save_weights_only=True)
    task = task_in(tmp_path, checkpoint_callback=checkpoint)
    model, state = train_on(2, task, tmp_path)
    assert (tmp_path / "result.weights.h5").exists()
    assert state["epoch"] == 1
    assert_same(model, one_process(task, 2))


def test_schedules_are_scaled(tmp_path: Path) -> None:
    schedule = keras.optimizers.schedules.ExponentialDecay(RATE, 1, 1.0)
    task = task_in(
        tmp_path, optimizer=OptimizerRecord.of(keras.optimizers.SGD(schedule, momentum=0.9))
    )
    model, state = train_on(2, task, tmp_path)
    assert state["learning_rate"] is None
    for value, wanted in zip(model.get_weights(), one_process(task, 2).get_weights(), strict=True):
        np.testing.assert_allclose(value, wanted, rtol=0, atol=1e-6)  # the schedule is float32


def test_a_checkpoint_of_something_else_is_refused(tmp_path: Path) -> None:
    make_model().save(tmp_path / "other.keras")
    run = run_in(tmp_path)
    run.save((tmp_path / "other.keras").read_bytes())
    with pytest.raises(UsageError, match="use another run_id"):
        run_ranks(1, train, task_in(tmp_path))


@pytest.mark.parametrize("weights_only", [False, True])
def test_a_checkpoint_of_another_training_is_refused(tmp_path: Path, weights_only: bool) -> None:
    name = "x.weights.h5" if weights_only else "x.keras"
    checkpoint = keras.callbacks.ModelCheckpoint(name, save_weights_only=weights_only)
    task = task_in(tmp_path, epochs=1, checkpoint_callback=checkpoint)
    # More than an attribute of HDF5 holds.
    begun = {"batch_size": "8", "model": "x" * 100_000}
    train_on(1, replace(task, run=replace(task.run, description=begun)), tmp_path)
    other = replace(task.run, description={**begun, "batch_size": "9"})
    with pytest.raises(UsageError, match="trains something else: batch_size was 8, and is 9"):
        run_ranks(1, train, replace(task, run=other))


def test_a_model_is_described_without_the_names_that_keras_counts() -> None:
    first, second = (described_model(make_model()) for _ in range(2))
    assert flat("model", first) == flat("model", second)
    wider = keras.Sequential([keras.Input((4,)), keras.layers.Dense(6, "tanh")])
    assert flat("model", described_model(wider)) != flat("model", first)


def test_the_given_model_stays_as_it_is() -> None:
    model = make_model()
    before = [value.copy() for value in model.get_weights()]
    model_bytes(model)
    assert not model.compiled
    for value, kept in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(value, kept)


class Steps(keras.callbacks.Callback):  # type: ignore[misc]
    """Lets a rank die before some step."""

    def __init__(self, folder: Path, **story: Any) -> None:
        super().__init__()
        self._folder = folder
        self._story = story

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        dying_rank.step(self._folder, **self._story)


class WorseLater(keras.callbacks.Callback):  # type: ignore[misc]
    """Lets the first epoch have the best model."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch:
            self.model.optimizer.learning_rate = -0.001


def elastic_on_two(
    folder: Path, commit_every: int, callbacks: Any, changes: Any = None, **options: Any
) -> tuple[Any, dict[str, Any]]:
    """Trains 4 epochs on two ranks, of which one dies in the second epoch."""
    task = task_in(folder, epochs=4, callbacks=callbacks, **(changes or {}))
    task = replace(task, data=with_validation(task.data, folder))
    results = dying_rank.on_ranks(folder, train, task, commit_every, **options)
    model, state = loaded(results[0], task, folder)
    assert (folder / "runs/r/checkpoint").read_bytes() == results[0]
    return model, state


def after_steps(folder: Path, *parts: tuple[int, range, Any, int]) -> tuple[Any, list[float]]:
    """A model that one process has trained with the rate of two ranks, and the loss of each step.

    Args:
        folder: that of the training that is compared with it.
        parts: of the training: size, epochs, stretches that came before, how many steps.
    """
    task = task_in(folder / "again")
    model = make_model()
    model.compile(keras.optimizers.SGD(RATE * 2, momentum=0.9), "mse")
    losses = []
    for size, epochs, stretches, count in parts:
        steps = steps_of_all_ranks(task.data, size, epochs, False, stretches)
        for rows in itertools.islice(steps, count):
            model.reset_metrics()
            losses.append(float(model.train_on_batch(rows["x"], rows["y"].reshape(-1, 1))))
    return model, losses


def test_an_epoch_in_which_a_rank_is_lost_begins_anew_on_the_others(tmp_path: Path) -> None:
    model, state = elastic_on_two(tmp_path, 100, [Steps(tmp_path)])
    assert dying_rank.sizes_of_survivor(tmp_path) == [2] * 7 + [1] * 24
    wanted, losses = after_steps(tmp_path, (2, range(1), (), 4), (1, range(1, 4), (), 24))
    assert_same(model, wanted)
    assert (state["epoch"], state["learning_rate"]) == (3, RATE)
    means = [np.mean(losses[:4]), *(np.mean(losses[at : at + 8]) for at in (4, 12, 20))]
    np.testing.assert_allclose(state["history"]["loss"], means, rtol=1e-6)
    assert len(state["history"]["val_loss"]) == 4


def test_an_epoch_goes_on_from_the_last_commit_in_it(tmp_path: Path) -> None:
    schedule = keras.optimizers.schedules.ExponentialDecay(RATE, 1, 1.0)
    optimizer = OptimizerRecord.of(keras.optimizers.SGD(schedule, momentum=0.9))
    model, state = elastic_on_two(tmp_path, 1, [Steps(tmp_path)], {"optimizer": optimizer})
    assert dying_rank.sizes_of_survivor(tmp_path) == [2] * 7 + [1] * 20
    wanted, losses = after_steps(tmp_path, (2, range(2), (), 6), (1, range(1, 4), [(2, 2)], 20))
    for value, other in zip(model.get_weights(), wanted.get_weights(), strict=True):
        np.testing.assert_allclose(value, other, rtol=0, atol=1e-6)  # the schedule is float32
    assert [len(values) for values in state["history"].values()] == [4, 4]
    # Of the whole epoch, also of what was measured before the loss.
    assert abs(state["history"]["loss"][1] - np.mean(losses[6:10])) > 0.01
    assert min(losses[4:10]) < state["history"]["loss"][1] < max(losses[4:10])


def test_the_best_model_outlives_the_rank_that_wrote_it(tmp_path: Path) -> None:
    best = hvd.callbacks.BestModelCheckpoint(monitor="val_loss")
    callbacks = [Steps(tmp_path, dies=0), WorseLater()]
    model, state = elastic_on_two(tmp_path, 100, callbacks, {"checkpoint_callback": best})
    assert dying_rank.sizes_of_survivor(tmp_path) == [2] * 7 + [1] * 24
    assert state["epoch"] == 0
    assert_same(model, after_steps(tmp_path, (2, range(1), (), 4))[0])


def test_a_rank_that_comes_takes_part_from_the_next_commit_on(tmp_path: Path) -> None:
    callbacks = [Steps(tmp_path, awaits=True)]
    model, state = elastic_on_two(tmp_path, 100, callbacks, cooldown_range=(1, 1))
    assert dying_rank.sizes_of_survivor(tmp_path) == [2] * 7 + [1] * 16 + [2] * 4
    parts = (2, range(1), (), 4), (1, range(1, 3), (), 16), (2, range(3, 4), (), 4)
    wanted, _ = after_steps(tmp_path, *parts)
    assert_same(model, wanted)
    assert [len(values) for values in state["history"].values()] == [4, 4]


def test_ranks_weigh_as_many_rows_as_they_have(tmp_path: Path) -> None:
    """Of three ranks, one has a single row in the last step of an epoch, and two have none."""
    task = task_in(tmp_path)
    task = replace(task, data=replace(task.data, train=replace(task.data.train, batch_size=7)))
    results = dying_rank.on_ranks(tmp_path, train, task, commit_every=100, num_proc=3)
    assert_same(loaded(results[0], task, tmp_path)[0], one_process(task, 3))
