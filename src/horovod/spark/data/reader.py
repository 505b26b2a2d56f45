"""Batches of a Parquet folder for one rank."""

from __future__ import annotations

import itertools
import math
import weakref
from concurrent.futures import CancelledError
from contextlib import closing
from typing import TYPE_CHECKING, Any

import numpy as np

from horovod.errors import UsageError
from horovod.spark.data.background import Background
from horovod.spark.data.columns import join, stack
from horovod.spark.data.files import ParquetFiles
from horovod.spark.data.shards import passes, shard
from horovod.spark.data.window_reading import WINDOW_BYTES, Block, WindowReading

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence

    from horovod.spark.data.shards import Window

__all__ = ["ParquetReader"]


class ParquetReader:
    """Batches of a Parquet folder for one rank, read ahead on threads, equally many on all ranks.

    A rank's share of the rows is the same in all epochs; shares differ by at most one row. It never
    waits for other ranks.

    A row group, or several if they are small, is in memory while its batches are handed out, and
    meanwhile the next one is read: two row groups, or 64 MiB if they are smaller. Rows are shuffled
    within what is in memory together, and row groups among each other.

    Args:
        path: a folder, or one file; a path or any URL of fsspec.
        columns: what to read.
        batch_size: rows in a batch, at least 1.
        rank, size: which share of how many.
        storage_options: of fsspec, for the URL.
        shuffle: another order in each epoch, which follows from the seed; else file order.
        seed: at least 0.
        transform: applied to each row: a dict of column to value in, such a dict out.
        num_threads: how many threads read, at least 1.
        in_memory: read the share once and keep it.
        drop_last: all batches have ``batch_size`` rows; where the share ends within a batch, the
            rest of it comes from its beginning. Otherwise such a batch is shorter.

    Attributes:
        num_rows: of the whole data set.
        batch_size, shuffle: as given.

    Raises:
        UsageError: an argument makes no sense, a column is missing, or there are no rows.
        OSError: a file cannot be read.

    Example:
        >>> with ParquetReader("/data/train", columns=["x", "y"], batch_size=32) as reader:
        ...     for batch in reader.batches(epoch=0):
        ...         train(batch["x"], batch["y"])
    """

    num_rows: int

    def __init__(
        self,
        path: str,
        *,
        columns: Sequence[str],
        batch_size: int,
        rank: int = 0,
        size: int = 1,
        storage_options: Mapping[str, Any] | None = None,
        shuffle: bool = True,
        seed: int = 0,
        transform: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
        num_threads: int = 2,
        in_memory: bool = False,
        drop_last: bool = False,
    ) -> None:
        for name, value in (("batch_size", batch_size), ("num_threads", num_threads)):
            if value < 1:
                raise UsageError(f"{name} is {value}, but must be at least 1")
        if seed < 0:
            raise UsageError(f"seed is {seed}, but must not be negative")
        if not 0 <= rank < size:
            raise UsageError(f"rank {rank} of size {size}: must be at least 0 and below the size")
        self._files = ParquetFiles(path, columns, storage_options)
        self.num_rows = self._files.num_rows
        self.batch_size = batch_size
        self.shuffle = shuffle
        self._size = size
        self._seed = (seed, rank) if shuffle else None
        self._transform = transform
        self._num_threads = num_threads
        self._in_memory = in_memory
        self._drop_last = drop_last
        self._who = f"rank {rank}"
        self._pieces = shard(self._files.rows, rank, size)
        self._share_rows = sum(piece.num_rows for piece in self._pieces)
        self._most_rows = max(1, WINDOW_BYTES // self._files.row_bytes())
        self._kept: Block | None = None
        self._background = Background(num_threads, f"{self._who} reads {path}")
        # Also if nobody closes it.
        weakref.finalize(self, self._background.close).atexit = False

    def __enter__(self) -> ParquetReader:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def steps(self) -> int:
        """Batches in an epoch, the same on all ranks.

        Rows divided by batch size and ranks: the next larger number, or with ``drop_last`` the next
        smaller one, at least 1.
        """
        rows_of_step = self.batch_size * self._size
        if self._drop_last:
            return max(1, self.num_rows // rows_of_step)
        return math.ceil(self.num_rows / rows_of_step)

    def batches(self, epoch: int, steps: int | None = None) -> Iterator[Block]:
        """The batches of an epoch.

        Args:
            epoch: at least 0; decides the order if rows are shuffled.
            steps: how many batches; None for :meth:`steps`. When the share is exhausted, it begins
                anew, in another order if rows are shuffled.

        Yields:
            By column an array whose first dimension is the batch: numbers keep their type, strings
            are objects. Lists of the same length are further dimensions; otherwise the array holds
            objects. The arrays belong to the caller.

        Raises:
            RuntimeError: a row group cannot be read, or the reader was closed. The message names
                the file.
            UsageError: a column has nulls where only floating-point numbers may, or no usable type.
        """
        wanted = self.steps() if steps is None else steps
        seed = None if self._seed is None else (*self._seed, epoch)
        source = self._kept_blocks if self._in_memory else self._read_blocks
        with closing(source(seed, self._passes_for(wanted))) as blocks:
            batches = rebatch(blocks, self.batch_size, keep_short=not self._drop_last)
            for batch in itertools.islice(batches, wanted):
                yield self._transformed(batch)

    def keep_in_memory(self) -> None:
        """From the next epoch on reads nothing anew, as if opened with ``in_memory``."""
        self._in_memory = True

    def close(self) -> None:
        """Ends the threads, and what is being read. Closing twice does nothing."""
        self._kept = None
        self._background.close()

    def _passes_for(self, steps: int) -> int:
        """How often this rank goes through its share to get some batches."""
        if self._drop_last:
            return math.ceil(steps * self.batch_size / self._share_rows)
        return math.ceil(steps / math.ceil(self._share_rows / self.batch_size))

    def _read_blocks(
        self, seed: Sequence[int] | None, count: int
    ) -> Generator[tuple[Block, bool], None, None]:
        """Blocks of rows, read ahead, each with whether the share ends there."""
        windows = passes(self._pieces, self._most_rows, count, seed)
        current = self._begin(next(windows, None))
        ahead = None
        try:
            while current is not None:
                for block, share in current.blocks():
                    if ahead is None:
                        ahead = self._begin(next(windows, None))
                    if ahead is not None:
                        # As fast as this window is freed.
                        ahead.submit(share)
                    yield block, current.ends_pass and share == 1
                    del block
                current, ahead = ahead, None
        except CancelledError:
            raise RuntimeError(f"{self._who}: the reader was closed") from None
        finally:
            for reading in (current, ahead):
                if reading is not None:
                    reading.cancel()

    def _begin(self, window: Window | None) -> WindowReading | None:
        if window is None:
            return None
        return WindowReading(self._files, window, self._background, self.batch_size, self._who)

    def _kept_blocks(
        self, seed: Sequence[int] | None, count: int
    ) -> Generator[tuple[Block, bool], None, None]:
        """The same from memory, as copies."""
        if self._kept is None:
            self._kept = self._load()
        kept = self._kept
        for number in range(count):
            order = np.arange(self._share_rows)
            if seed is not None:
                order = np.random.default_rng([*seed, number]).permutation(self._share_rows)
            for start in range(0, self._share_rows, self.batch_size):
                rows = order[start : start + self.batch_size]
                block = {name: np.take(column, rows, axis=0) for name, column in kept.items()}
                yield block, start + len(rows) == self._share_rows

    def _load(self) -> Block:
        parts: dict[str, list[np.ndarray]] = {name: [] for name in self._files.columns}
        for block, _ in self._read_blocks(None, 1):
            for name, array in block.items():
                parts[name].append(array)
        return {name: join(parts.pop(name)) for name in self._files.columns}

    def _transformed(self, batch: Block) -> Block:
        if self._transform is None:
            return batch
        rows = zip(*batch.values(), strict=True)
        found = [self._transform(dict(zip(batch, row, strict=True))) for row in rows]
        names = set(found[0]) if isinstance(found[0], dict) else set()
        if not names or any(not isinstance(row, dict) or set(row) != names for row in found):
            raise UsageError(
                f"{self._who}: the transformation must return a dict with the same columns for "
                f"each row, but returned {found[0]!r:.200}"
            )
        return {name: stack([row[name] for row in found]) for name in found[0]}


def rebatch(
    blocks: Iterable[tuple[Block, bool]], batch_size: int, keep_short: bool
) -> Iterator[Block]:
    """Batches of the same size from blocks of any sizes.

    Args:
        blocks: each with whether a pass ends there.
        batch_size: rows in a batch.
        keep_short: let a pass end with a shorter batch; else the next one begins within it.
    """
    rest: list[Block] = []
    missing = batch_size
    for block, ends_pass in blocks:
        num_rows = len(next(iter(block.values())))
        start = 0
        while start < num_rows:
            stop = min(start + missing, num_rows)
            rest.append({name: array[start:stop] for name, array in block.items()})
            missing -= stop - start
            start = stop
            if missing == 0:
                yield _joined(rest)
                rest, missing = [], batch_size
        del block
        if ends_pass and keep_short and rest:
            yield _joined(rest)
            rest, missing = [], batch_size


def _joined(blocks: Sequence[Block]) -> Block:
    if len(blocks) == 1:
        return blocks[0]
    return {name: join([block[name] for block in blocks]) for name in blocks[0]}
