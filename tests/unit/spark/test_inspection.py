"""Nulls and ragged arrays are found in Parquet files, mostly from their footers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
import pyarrow.parquet as pq

from horovod.spark.data import inspection
from horovod.spark.data.files import ParquetFiles
from horovod.spark.data.inspection import Findings, inspect
from horovod.spark.data.reader import ParquetReader

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

NAN = float("nan")


def found_in(folder: Path, *parts: Sequence[Any], kind: Any = None, **options: Any) -> Findings:
    """What is found in a column of several files, in row groups of two rows."""
    for number, part in enumerate(parts):
        table = pa.table({"a.b": pa.array(part, kind), "a": [1.0] * len(part)})
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=2, **options)
    return inspect(ParquetFiles(str(folder), None), ["a.b"])["a.b"]


@pytest.mark.parametrize("statistics", [True, False])
@pytest.mark.parametrize(
    ("values", "nulls"),
    [
        ([1.0, NAN, 2.0], 0),
        ([1.0, None, NAN, None], 2),
        ([1, None, 3], 1),
        ([True, None], 1),
        (["a", None], 1),
    ],
)
def test_nulls_are_counted_and_nan_is_a_number(
    tmp_path: Path, values: list[Any], nulls: int, statistics: bool
) -> None:
    found = found_in(tmp_path, values, values, write_statistics=statistics)
    assert found == Findings(2 * nulls, None)


def test_footers_are_enough_for_single_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ParquetFiles, "open", None)
    assert found_in(tmp_path, [1.0, None], [None], kind=pa.float64()) == Findings(2, None)


LISTS = pa.list_(pa.float32())
NESTED = pa.list_(LISTS)


@pytest.mark.parametrize(
    ("kind", "rows", "nulls", "lengths"),
    [
        (LISTS, [[1, 2], [3, NAN]], 0, (2, 2)),
        (LISTS, [[1, 2], [3, None]], 1, (2, 2)),
        (LISTS, [[1, 2], None, [None, None]], 3, (2, 2)),
        (LISTS, [[1], [2, 3, 4]], 0, (1, 3)),
        (LISTS, [[], [1]], 0, (0, 1)),
        (LISTS, [[], []], 0, (0, 0)),
        (NESTED, [[[1, 2], [3, 4]], [[5, 6], [7, 8]]], 0, (4, 4)),
        (NESTED, [[[1, 2], [3, 4]], [[5, 6], [7]]], 0, (2, 4)),
        (NESTED, [[[1, 2], None], [[5, None], [6, 7]]], 2, (4, 4)),
        (pa.list_(pa.int8(), 2), [[1, 2], [3, 4]], 0, (2, 2)),
        (pa.large_list(pa.int8()), [[1, 2], [3]], 0, (1, 2)),
    ],
)
def test_arrays_have_nulls_and_lengths(
    tmp_path: Path, kind: Any, rows: list[Any], nulls: int, lengths: tuple[int, int]
) -> None:
    assert found_in(tmp_path, rows, rows, kind=kind) == Findings(2 * nulls, lengths)


@pytest.mark.parametrize(
    ("rows", "lengths"),
    [([[1, 2], [3, 4]], (2, 2)), ([[1, 2], [3]], (1, 2)), ([[1], [2], [3, 4], [5, 6]], (1, 2))],
)
def test_large_columns_of_arrays_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: list[Any], lengths: tuple[int, int]
) -> None:
    monkeypatch.setattr(inspection, "_READ_BYTES", 0)
    monkeypatch.setattr(ParquetFiles, "open", None)
    assert found_in(tmp_path, rows, kind=LISTS) == Findings(0, lengths)


def test_the_bytes_of_a_row_are_those_of_its_columns_whatever_their_names(tmp_path: Path) -> None:
    names = ["a.b", "a", "select", " ", "`x`", "größe", "a.b.list"]
    lists = pa.array([[1.0, 2.0]] * 4)
    table = pa.table({name: lists if name == "a" else pa.array([1.0] * 4) for name in names})
    pq.write_table(table, tmp_path / "0.parquet")
    for name in names:
        expected = 16 if name == "a" else 8
        assert ParquetFiles(str(tmp_path), [name]).row_bytes() == expected
    with ParquetReader(str(tmp_path), columns=names, batch_size=4) as reader:
        [batch] = reader.batches(0)
    assert {name: array.shape for name, array in batch.items()} == {
        name: (4, 2) if name == "a" else (4,) for name in names
    }
