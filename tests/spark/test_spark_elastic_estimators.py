"""An estimator goes on after the loss of an executor, in the process that is left."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras
import pytest
from tests.spark.spark_models import (
    DIGITS_EPOCHS,
    DIGITS_RATE,
    LEAST_ACCURACY,
    accuracy,
    for_digits,
    with_pixels,
)
from tests.spark.spark_training import lose_executor
from tests.spark.spark_waits import is_running

from horovod.spark.torch.training import _step

if TYPE_CHECKING:
    from pathlib import Path

# In the fifth epoch: with two ranks, one has 23 steps, or 22 if all of them are whole.
LOST_BEFORE = 100


def assert_one_was_lost(folder: Path) -> None:
    assert not is_running(int((folder / "lost").read_text()))
    lines = [line.split() for line in (folder / "steps").read_text().splitlines()]
    steps_of: dict[str, list[str]] = {}
    for pid, rank in lines:
        steps_of.setdefault(rank, []).append(pid)
    assert len(set(steps_of["0"])) == 1  # the same process before and after
    assert steps_of["1"][: LOST_BEFORE + 1] == [steps_of["1"][0]] * (LOST_BEFORE + 1)


def test_torch_learns_the_digits_though_an_executor_is_lost(
    digits: Any, store: Any, tmp_path: Path
) -> None:
    def step(*args: Any) -> Any:
        lose_executor(tmp_path, LOST_BEFORE)
        return _step(*args)

    estimator = for_digits(
        "torch", store, min_num_proc=1, validation="is_test", train_minibatch_fn=step
    )
    frame = with_pixels(digits)
    model = estimator.fit(frame)
    assert_one_was_lost(tmp_path)
    assert [each["epoch"] for each in model.getHistory()] == list(range(DIGITS_EPOCHS))
    assert accuracy(model.transform(frame.where("is_test"))) >= LEAST_ACCURACY
    assert model.getOptimizer().param_groups[0]["lr"] == DIGITS_RATE


def test_keras_learns_the_digits_though_an_executor_is_lost(
    digits: Any, store: Any, tmp_path: Path
) -> None:
    class LosesExecutor(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            lose_executor(tmp_path, LOST_BEFORE)

    estimator = for_digits(
        "keras", store, min_num_proc=1, validation="is_test", callbacks=[LosesExecutor()]
    )
    frame = with_pixels(digits)
    model = estimator.fit(frame)
    assert_one_was_lost(tmp_path)
    assert [len(values) for values in model.getHistory().values()] == [DIGITS_EPOCHS] * 2
    assert accuracy(model.transform(frame.where("is_test"))) >= LEAST_ACCURACY
    rate = float(model.getModel().optimizer.learning_rate)
    assert rate == pytest.approx(DIGITS_RATE)
