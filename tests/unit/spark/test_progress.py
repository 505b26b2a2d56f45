"""Where an elastic training goes on when an epoch has another number of steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

pytest.importorskip("pyspark")
from spark_files import data_in, steps_of_all_ranks

from horovod.spark.common.datamodule import ParquetDataModule
from horovod.spark.common.progress import Progress

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("step", "steps", "now", "multiple", "left_out"),
    [
        (0, 0, 8, 1, 0),  # the training begins
        (0, 4, 8, 1, 0),
        (2, 4, 8, 1, 4),
        (3, 8, 4, 1, 1),
        (3, 8, 4, 2, 0),
        (6, 8, 16, 4, 12),
        (4, 4, 8, 1, 7),  # a step is left in any case
        (1, 1, 1, 1, 0),
    ],
)
def test_as_much_of_the_epoch_is_done(
    step: int, steps: int, now: int, multiple: int, left_out: int
) -> None:
    progress = Progress(2, history=[], step=step, steps=steps)
    progress.divide(now, multiple)
    assert (progress.step, progress.steps) == (left_out, now)


def test_what_is_sent_is_all_there_is() -> None:
    progress = Progress(2, history=[1], step=3, steps=4, measured=[0.5])
    other = Progress(0, history=[])
    other.load_state_dict(progress.state_dict())
    assert other == progress
    other.end_epoch()
    assert (other.step, other.measured) == (0, None)


@pytest.mark.parametrize("shuffle", [False, True])
def test_only_the_first_epoch_leaves_steps_out(tmp_path: Path, shuffle: bool) -> None:
    data = data_in(tmp_path, ParquetDataModule, shuffle=shuffle)
    whole = list(steps_of_all_ranks(data, 2, 3, whole_batches=True))
    rest = list(steps_of_all_ranks(data, 2, range(1, 3), whole_batches=True, steps_done=3))
    assert len(rest) == len(whole) - 7
    for rows, wanted in zip(rest, whole[7:], strict=True):
        np.testing.assert_array_equal(rows["x"], wanted["x"])
