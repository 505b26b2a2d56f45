"""Loaders of tensors over a reader of Parquet files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

pytest.importorskip("pyspark")

import pyarrow as pa
import pyarrow.parquet as pq

from horovod.errors import UsageError
from horovod.spark.data.reader import ParquetReader
from horovod.spark.data_loaders.pytorch_data_loaders import (
    PytorchAsyncDataLoader,
    PytorchDataLoader,
    PytorchInfiniteAsyncDataLoader,
    PytorchInfiniteDataLoader,
    PytorchInmemAsyncDataLoader,
    PytorchInmemDataLoader,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

KINDS = [
    PytorchDataLoader,
    PytorchAsyncDataLoader,
    PytorchInfiniteDataLoader,
    PytorchInfiniteAsyncDataLoader,
    PytorchInmemDataLoader,
    PytorchInmemAsyncDataLoader,
]


@pytest.fixture
def folder(tmp_path: Path) -> str:
    columns = {"x": list(range(10)), "y": [[i, i / 2] for i in range(10)], "s": list("abcdefghij")}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    return str(tmp_path)


@pytest.fixture
def reader(folder: str) -> Iterator[ParquetReader]:
    columns = ["x", "y", "s"]
    with ParquetReader(folder, columns=columns, batch_size=4, shuffle=False) as opened:
        yield opened


def epoch(loader: Any) -> list[list[int]]:
    return [batch["x"].tolist() for batch in loader]


def close(loader: Any) -> None:
    if hasattr(loader, "close_async_loader"):
        loader.close_async_loader()


@pytest.mark.parametrize("kind", KINDS)
def test_epochs_of_all_loaders(reader: ParquetReader, kind: Any) -> None:
    loader = kind(reader=reader, batch_size=4, limit_step_per_epoch=3)
    assert len(loader) == 3
    for _ in range(3):
        assert epoch(loader) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    close(loader)


@pytest.mark.parametrize("kind", [PytorchDataLoader, PytorchInmemAsyncDataLoader])
def test_numbers_become_tensors(reader: ParquetReader, kind: Any) -> None:
    loader = kind(reader=reader, batch_size=4, limit_step_per_epoch=1)
    batch = next(iter(loader))
    assert batch["x"].dtype == torch.int64
    assert batch["y"].shape == (4, 2)
    assert batch["y"].dtype == torch.float64
    assert batch["s"].tolist() == list("abcd")
    close(loader)


def test_without_a_limit_the_reader_decides(reader: ParquetReader) -> None:
    loader = PytorchDataLoader(reader, 4)
    assert len(loader) == 3
    assert len(epoch(loader)) == 3


@pytest.mark.parametrize(
    ("kind", "later"),
    [
        (PytorchDataLoader, [[0, 1, 2, 3], [4, 5, 6, 7]]),
        (PytorchInfiniteDataLoader, [[8, 9], [0, 1, 2, 3]]),
        (PytorchInfiniteAsyncDataLoader, [[8, 9], [0, 1, 2, 3]]),
    ],
)
def test_where_the_next_epoch_begins(
    reader: ParquetReader, kind: Any, later: list[list[int]]
) -> None:
    loader = kind(reader=reader, batch_size=4, limit_step_per_epoch=2)
    assert epoch(loader) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert epoch(loader) == later
    close(loader)


def test_what_is_kept_needs_no_files(folder: str, reader: ParquetReader, tmp_path: Path) -> None:
    loader = PytorchInmemDataLoader(reader, 4, num_epochs=2, limit_step_per_epoch=3)
    first = epoch(loader)
    (tmp_path / "a.parquet").unlink()
    assert epoch(loader) == first
    assert epoch(loader) == []


def test_epochs_are_told_of(reader: ParquetReader, capsys: pytest.CaptureFixture[str]) -> None:
    loader = PytorchDataLoader(reader, 4, name="training", verbose=True)
    epoch(loader)
    assert capsys.readouterr().err == "training: epoch 0: 3 batches\n"


def test_what_loaders_do_not_take(reader: ParquetReader) -> None:
    with pytest.raises(UsageError, match="batch_size is 5, but the reader gives batches of 4"):
        PytorchDataLoader(reader, 5)
    with pytest.raises(UsageError, match="list is no reader of batches without an end"):
        PytorchInfiniteDataLoader([], 4)
    with pytest.raises(UsageError, match="limit_step_per_epoch is -1"):
        PytorchInmemDataLoader(reader, 4)
    with pytest.raises(UsageError, match="shuffle is True, but the reader has shuffle=False"):
        PytorchInmemDataLoader(reader, 4, shuffle=True, limit_step_per_epoch=1)
