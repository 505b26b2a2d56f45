"""What the tests of the estimators' training functions share: files, a store, a reference."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from horovod.spark.common.runs import RunFolder
from horovod.spark.common.store import FilesystemStore
from horovod.spark.common.training import Part, TrainingData

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from horovod.spark.data.division import Stretches

NUM_ROWS = 64
BATCH = 8


def write_rows(folder: Path, first: int = 0) -> Path:
    """Two files with features (4 numbers), a label that follows from them, and a weight."""
    folder.mkdir(parents=True)
    random = np.random.default_rng(first)
    for index in range(2):
        x = random.normal(size=(NUM_ROWS // 2, 4))
        columns = {
            "x": list(x),
            "y": x @ np.array([1.0, -2.0, 3.0, 0.5]),
            "w": random.uniform(0.5, 2.0, NUM_ROWS // 2),
            "c": (x[:, 0] > 0).astype(np.int64),
        }
        pq.write_table(pa.table(columns), folder / f"{index}.parquet", row_group_size=8)
    return folder


def data_in(folder: Path, module: Any, **changes: Any) -> TrainingData:
    """What an estimator would tell ranks of the files in a folder, which it writes."""
    train = write_rows(folder / "train")
    part = Part(str(train), NUM_ROWS, BATCH, None, 2)
    data = TrainingData(
        module=module,
        train=part,
        val=None,
        features=["x"],
        labels=["y"],
        weights=None,
        numbers=None,
        categories=None,
        metadata={},
        storage_options=None,
        shuffle=False,
        seed=3,
        transform=None,
        in_memory=False,
        pool="thread",
        use_gpu=False,
        start_method=None,
        verbose=0,
    )
    return replace(data, **changes)


def with_validation(data: TrainingData, folder: Path) -> TrainingData:
    """The same with other rows for validation."""
    val = write_rows(folder / "val", first=1)
    return replace(data, val=replace(data.train, path=str(val)))


def run_in(folder: Path, run_id: str = "r", saves: bool = True) -> RunFolder:
    return RunFolder(FilesystemStore(str(folder), save_runs=saves), run_id)


def steps_of_all_ranks(
    data: TrainingData,
    size: int,
    epochs: int | range,
    whole_batches: bool,
    stretches: Stretches = (),
) -> Iterator[dict[str, np.ndarray]]:
    """The rows that count in each step, those of rank 0 first: what one process trains with."""
    epochs = range(epochs) if isinstance(epochs, int) else epochs
    rest = data.rest_of_epoch(size, stretches, whole_batches)
    parts = [epochs] if not stretches else [epochs[:1], epochs[1:]]
    for part in filter(None, parts):
        with ExitStack() as opened:
            modules = [
                opened.enter_context(data.module_for(rank, size, part, rest, _Plain()))
                for rank in range(size)
            ]
            steps = zip(*(module.train_data() for module in modules), strict=True)
            for step, batches in enumerate(steps):
                counted = [rest.division.counted(rank, step % rest.steps) for rank in range(size)]
                yield {
                    name: np.concatenate(
                        [batch[name][:rows] for batch, rows in zip(batches, counted, strict=True)]
                    )
                    for name in batches[0]
                }
        rest = data.rest_of_epoch(size, (), whole_batches)


class _Plain:
    """A framework that takes batches as they are read."""

    def make_dataset(self, batches: Any) -> Any:
        return batches()
