"""How far a training is, and what its data module reads of an epoch after changes."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import pytest

pytest.importorskip("pyspark")
from spark_files import data_in, steps_of_all_ranks

from horovod.spark.common.datamodule import ParquetDataModule
from horovod.spark.common.progress import Progress

if TYPE_CHECKING:
    from pathlib import Path


def test_what_is_sent_is_all_there_is() -> None:
    progress = Progress(2, 1, [1], [(2, 3), (1, 4)], measured=[0.5], samples_done=8)
    other = Progress()
    other.load_state_dict(progress.state_dict())
    assert other == progress
    assert other.steps_done == 7
    other.end_epoch()
    assert (other.epoch, other.stretches, other.measured) == (2, [], None)


@pytest.mark.parametrize("in_memory", [False, True])
@pytest.mark.parametrize("shuffle", [False, True])
def test_each_row_of_an_epoch_with_changes_is_read_once(
    tmp_path: Path, shuffle: bool, in_memory: bool
) -> None:
    data = data_in(tmp_path, ParquetDataModule, shuffle=shuffle, in_memory=in_memory)
    every = steps_of_all_ranks(data, 1, range(3, 4), False)
    wanted = Counter(float(row) for rows in every for row in rows["y"])
    found: Counter[float] = Counter()
    stretches: list[tuple[int, int]] = []
    for size, steps in ((2, 1), (3, 1), (2, 1), (1, 1)):
        epoch = steps_of_all_ranks(data, size, range(3, 4), False, list(stretches))
        found.update(float(row) for _ in range(steps) for row in next(epoch)["y"])
        stretches.append((size, steps))
    assert found == wanted
    assert set(found.values()) == {1}


@pytest.mark.parametrize("shuffle", [False, True])
def test_only_the_first_epoch_has_a_rest(tmp_path: Path, shuffle: bool) -> None:
    data = data_in(tmp_path, ParquetDataModule, shuffle=shuffle)
    whole = list(steps_of_all_ranks(data, 2, 3, whole_batches=False))
    rest = list(steps_of_all_ranks(data, 2, range(1, 3), False, [(2, 3)]))
    assert len(rest) == len(whole) - 7
    for rows, others in zip(rest[1:], whole[8:], strict=True):
        np.testing.assert_array_equal(rows["x"], others["x"])
