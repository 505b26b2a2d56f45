"""Batches of Parquet files: shards, order, steps, reading ahead, errors, memory."""

from __future__ import annotations

import gc
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
import pyarrow.parquet as pq

from horovod.errors import UsageError
from horovod.spark.data import window_reading
from horovod.spark.data.reader import ParquetReader

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NUM_ROWS = 510


def write(folder: Path, num_files: int = 5, row_group_size: int = 40) -> str:
    """Files of unequal sizes; each row holds its number, and lists and strings that follow."""
    folder.mkdir()
    first = 0
    for file in range(num_files):
        last = NUM_ROWS * (file + 1) // num_files - (file + 1 < num_files) * file
        numbers = np.arange(first, last)
        table = pa.table(
            {
                "x": numbers,
                "y": [[float(each), 1.0] for each in numbers],
                "s": [str(each) for each in numbers],
            }
        )
        path = folder / f"part-{file:05}.parquet"
        pq.write_table(table, path, row_group_size=row_group_size)
        first = last
    (folder / "_SUCCESS").touch()
    (folder / ".part-0.crc").write_bytes(b"no parquet")
    return str(folder)


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return write(tmp_path / "data")


def numbers(reader: ParquetReader, epoch: int = 0, steps: int | None = None) -> list[int]:
    return [int(each) for batch in reader.batches(epoch, steps) for each in batch["x"]]


def open_reader(folder: str, **options: Any) -> ParquetReader:
    options = {"columns": ["x"], "batch_size": 32, **options}
    return ParquetReader(folder, **options)


@pytest.fixture
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if each of the row groups were large."""
    monkeypatch.setattr("horovod.spark.data.reader.WINDOW_BYTES", 1)
    monkeypatch.setattr(window_reading, "_PART_BYTES", 100)


@pytest.mark.parametrize("in_memory", [False, True])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 600])
def test_each_row_is_read_once_by_one_rank(folder: str, size: int, in_memory: bool) -> None:
    found: list[int] = []
    steps = set()
    for rank in range(size):
        with open_reader(folder, rank=rank, size=size, in_memory=in_memory) as reader:
            found += numbers(reader)
            steps.add(reader.steps())
    assert len(steps) == 1
    assert set(found) == set(range(NUM_ROWS))
    assert len(found) == max(NUM_ROWS, size)


@pytest.mark.usefixtures("small_windows")
@pytest.mark.parametrize("batch_size", [1, 7, 40, 64, 1000])
def test_windows_of_one_row_group_lose_nothing(folder: str, batch_size: int) -> None:
    with open_reader(folder, batch_size=batch_size, columns=["x", "y", "s"]) as reader:
        batches = list(reader.batches(0))
    assert [len(batch["x"]) for batch in batches[:-1]] == [batch_size] * (len(batches) - 1)
    assert sorted(each for batch in batches for each in batch["x"]) == list(range(NUM_ROWS))
    for batch in batches:
        assert (batch["y"][:, 0] == batch["x"]).all()
        assert list(batch["s"]) == [str(each) for each in batch["x"]]


@pytest.mark.parametrize("in_memory", [False, True])
def test_unshuffled_rows_come_in_file_order(folder: str, in_memory: bool) -> None:
    with open_reader(folder, shuffle=False, in_memory=in_memory) as reader:
        assert numbers(reader) == list(range(NUM_ROWS))
        assert numbers(reader, epoch=1) == list(range(NUM_ROWS))


@pytest.mark.parametrize("in_memory", [False, True])
def test_the_order_follows_from_seed_and_epoch(folder: str, in_memory: bool) -> None:
    orders = []
    for seed in (0, 0, 1):
        with open_reader(folder, seed=seed, in_memory=in_memory) as reader:
            orders.append([numbers(reader, epoch=0), numbers(reader, epoch=1)])
    assert orders[0] == orders[1]
    assert orders[0][0] != orders[0][1]
    assert orders[0][0] != orders[2][0]
    assert orders[0][0] != list(range(NUM_ROWS))


@pytest.mark.usefixtures("small_windows")
def test_large_row_groups_are_shuffled_among_each_other_and_within(folder: str) -> None:
    with open_reader(folder) as reader:
        order = numbers(reader)
    # A row group fills the window, so its rows stay together.
    first = order[:20]
    assert max(first) - min(first) < 40
    assert first != sorted(first)


@pytest.mark.parametrize("in_memory", [False, True])
def test_an_exhausted_share_begins_anew(folder: str, in_memory: bool) -> None:
    with open_reader(folder, rank=0, size=4, in_memory=in_memory) as reader:
        sizes = [len(batch["x"]) for batch in reader.batches(0, steps=9)]
        assert sizes == [32, 32, 32, 31] * 2 + [32]
        found = numbers(reader, steps=9)
    assert len(set(found)) == 127
    assert found[:127] != found[127:254]


@pytest.mark.parametrize("in_memory", [False, True])
def test_full_batches_continue_at_the_beginning(folder: str, in_memory: bool) -> None:
    options = {"drop_last": True, "shuffle": False, "in_memory": in_memory, "batch_size": 100}
    with open_reader(folder, **options) as reader:
        assert reader.steps() == 5
        assert numbers(reader) == list(range(500))
        assert numbers(reader, steps=6) == [*range(510), *range(90)]
    with open_reader(folder, **{**options, "batch_size": 1000}) as reader:
        assert reader.steps() == 1
        assert numbers(reader) == [*range(510), *range(490)]


def test_steps_are_counted_over_all_ranks(folder: str) -> None:
    with open_reader(folder, size=4) as reader:
        assert reader.num_rows == NUM_ROWS
        assert reader.steps() == 4
        assert len(list(reader.batches(0))) == 4
    with open_reader(folder, size=4, drop_last=True) as reader:
        assert reader.steps() == 3


def test_batches_belong_to_the_caller(folder: str) -> None:
    for in_memory in (False, True):
        with open_reader(folder, shuffle=False, in_memory=in_memory) as reader:
            for batch in reader.batches(0):
                batch["x"] += 1000
            assert numbers(reader, epoch=1) == list(range(NUM_ROWS))


def test_rows_are_transformed_one_by_one(folder: str) -> None:
    def transform(row: dict[str, Any]) -> dict[str, Any]:
        return {"twice": 2 * row["x"], "pair": row["y"] + 1}

    with open_reader(folder, columns=["x", "y"], shuffle=False, transform=transform) as reader:
        batch = next(iter(reader.batches(0)))
    assert list(batch) == ["twice", "pair"]
    assert (batch["twice"] == 2 * np.arange(32)).all()
    assert batch["pair"].shape == (32, 2)
    assert (batch["pair"][:, 1] == 2).all()


@pytest.mark.parametrize("returned", [None, {}, 5])
def test_a_transformation_must_return_rows(folder: str, returned: Any) -> None:
    with (
        open_reader(folder, transform=lambda row: returned) as reader,
        pytest.raises(UsageError, match="must return a dict with the same columns"),
    ):
        list(reader.batches(0))


def test_an_error_of_a_transformation_is_the_callers(folder: str) -> None:
    def transform(row: dict[str, Any]) -> dict[str, Any]:
        raise KeyError("no such thing")

    with (
        open_reader(folder, transform=transform) as reader,
        pytest.raises(KeyError, match="no such thing"),
    ):
        list(reader.batches(0))


def test_a_damaged_row_group_is_named(folder: str, tmp_path: Path) -> None:
    path = tmp_path / "data" / "part-00003.parquet"
    content = bytearray(path.read_bytes())
    start = pq.read_metadata(path).row_group(1).column(0).dictionary_page_offset
    content[start : start + 40] = b"\xff" * 40
    path.write_bytes(content)
    with (
        open_reader(folder, shuffle=False) as reader,
        pytest.raises(RuntimeError, match=r"rank 0: cannot read row group 1 of .*part-00003"),
    ):
        list(reader.batches(0))


def test_a_file_that_is_cut_off_is_named(folder: str, tmp_path: Path) -> None:
    path = tmp_path / "data" / "part-00002.parquet"
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(OSError, match=r"part-00002.*no complete Parquet file"):
        open_reader(folder)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"columns": ["x", "z"]}, r"no columns \['z'\].*'x', 'y', 's'"),
        ({"columns": []}, "no columns are to be read"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"num_threads": 0}, "num_threads is 0"),
        ({"seed": -1}, "seed is -1"),
        ({"rank": 2, "size": 2}, "rank 2 of size 2"),
    ],
)
def test_wrong_arguments_are_refused(folder: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        open_reader(folder, **options)


def test_empty_data_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there are no Parquet files"):
        open_reader(str(tmp_path))
    pq.write_table(pa.table({"x": pa.array([], pa.int64())}), tmp_path / "a.parquet")
    with pytest.raises(UsageError, match="there are no rows in 1 files"):
        open_reader(str(tmp_path))


def threads_of(folder: str) -> list[threading.Thread]:
    return [each for each in threading.enumerate() if folder in each.name]


def test_closing_ends_the_threads(folder: str) -> None:
    reader = open_reader(folder)
    batches = reader.batches(0)
    next(batches)
    assert threads_of(folder)
    reader.close()
    assert not threads_of(folder)
    reader.close()
    with pytest.raises(RuntimeError, match="closed"):
        list(reader.batches(1))


def test_a_forgotten_reader_ends_its_threads(folder: str) -> None:
    reader = open_reader(folder)
    next(reader.batches(0))
    assert threads_of(folder)
    del reader
    gc.collect()
    assert not threads_of(folder)


@pytest.mark.usefixtures("small_windows")
def test_closing_wakes_who_waits_for_a_batch(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reading, go_on = threading.Event(), threading.Event()
    read_piece = window_reading.WindowReading._read_piece

    def slowly(self: Any, *args: Any) -> Iterator[Any]:
        reading.set()
        assert go_on.wait(30)
        return read_piece(self, *args)

    monkeypatch.setattr(window_reading.WindowReading, "_read_piece", slowly)
    reader = open_reader(folder, columns=["x", "y", "s"], num_threads=1)
    errors: list[RuntimeError] = []

    def consume() -> None:
        try:
            list(reader.batches(0))
        except RuntimeError as error:
            errors.append(error)

    consumer = threading.Thread(target=consume)
    consumer.start()
    assert reading.wait(30)
    closer = threading.Thread(target=reader.close)
    closer.start()
    go_on.set()
    for each in (consumer, closer):
        each.join(30)
        assert not each.is_alive()
    assert "the reader was closed" in str(errors[0])


@pytest.mark.usefixtures("small_windows")
def test_an_epoch_may_be_left_early(folder: str) -> None:
    with open_reader(folder) as reader:
        for _ in range(3):
            for _ in reader.batches(0):
                break
        assert sorted(numbers(reader)) == list(range(NUM_ROWS))


@pytest.mark.usefixtures("small_windows")
def test_no_more_than_two_row_groups_are_in_memory(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted by the row groups whose reading has begun before the earlier ones were handed out."""
    begun: list[int] = []
    read_piece = window_reading.WindowReading._read_piece

    def counted(self: Any, piece: Any, columns: Any) -> Iterator[Any]:
        begun.append(id(piece))
        return read_piece(self, piece, columns)

    monkeypatch.setattr(window_reading.WindowReading, "_read_piece", counted)
    with open_reader(folder, shuffle=False, batch_size=1) as reader:
        for batch in reader.batches(0):
            ends = np.cumsum([min(40, rows) for each in reader._files.rows for rows in each])
            current = int(np.searchsorted(ends, batch["x"][0], side="right"))
            assert len(begun) <= current + 2


@pytest.mark.parametrize("url", ["memory://reader/data", "file://"])
def test_any_file_system_of_fsspec_is_read(folder: str, url: str) -> None:
    from fsspec.core import url_to_fs

    if url == "file://":
        url += folder
    else:
        fs, path = url_to_fs(url)
        fs.put(folder, path, recursive=True)
    with open_reader(url, rank=1, size=2) as reader:
        assert sorted(numbers(reader)) == list(range(255, 510))


def test_one_file_is_a_data_set(folder: str) -> None:
    with open_reader(f"{folder}/part-00000.parquet", shuffle=False) as reader:
        assert numbers(reader) == list(range(102))
