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
from horovod.spark.data.division import Division, division_after
from horovod.spark.data.files import ParquetFiles
from horovod.spark.data.shards import Order, Window, count, cut, grouped, left_after, whole
from horovod.spark.data.window_reading import WINDOW_BYTES, Block, WindowReading

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence

    from horovod.spark.data.division import Stretches
    from horovod.spark.data.shards import Piece

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
        self._seed = seed
        self._transform = transform
        self._num_threads = num_threads
        self._in_memory = in_memory
        self._drop_last = drop_last
        self._who = f"rank {rank}"
        self._rank = rank
        self._pieces = whole(self._files.rows)
        self._most_rows = max(1, WINDOW_BYTES // self._files.row_bytes())
        # The share that is kept, and of which epoch and stretch it is.
        self._kept_share: object = None
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
        return self._division(()).steps

    def batches(
        self, epoch: int, steps: int | None = None, stretches: Stretches = ()
    ) -> Iterator[Block]:
        """Return the batches of an epoch, or of what is left of it.

        Args:
            epoch: at least 0; decides the order if rows are shuffled.
            steps: how many batches; None for as many as all rows need. When the share is exhausted,
                it begins again, in another order if rows are shuffled.
            stretches: of this epoch that have ended, each as its number of ranks and the steps that
                they took. The ranks divide what is left, and each row comes once.

        Yields:
            By column an array whose first dimension is the batch: numbers keep their type, strings
            are objects. Lists of the same length are further dimensions; otherwise the array holds
            objects. The arrays belong to the caller.

        Raises:
            RuntimeError: a row group cannot be read, or the reader was closed. The message names
                the file.
            UsageError: a column has nulls where only floating-point numbers may, or no usable type.
        """
        division = self._division(stretches)
        wanted = division.steps if steps is None else steps
        if not wanted:
            return
        order = Order(
            (self._seed, epoch) if self.shuffle else None,
            None if self._in_memory else self._most_rows,
        )
        left = left_after(stretches, self._pieces, self.batch_size, self._drop_last, order)
        share = cut(left, division.share(self._rank))
        number = self._passes_for(wanted, count(share))
        windows = order.passes(share, self._rank, number, len(stretches))
        source = self._read_blocks(windows)
        if self._in_memory:
            source = self._kept_blocks(windows, share, (epoch, *stretches) if stretches else ())
        with closing(source) as blocks:
            for batch in rebatch(blocks, self._sizes(count(share), wanted)):
                yield self._transformed(batch)

    def keep_in_memory(self) -> None:
        """From the next epoch on reads nothing anew, as if opened with ``in_memory``."""
        self._in_memory = True

    def close(self) -> None:
        """Ends the threads, and what is being read. Closing twice does nothing."""
        self._kept = None
        self._background.close()

    def _division(self, stretches: Stretches) -> Division:
        return division_after(
            stretches, self.num_rows, self._size, self.batch_size, self._drop_last
        )

    def _passes_for(self, steps: int, rows: int) -> int:
        """Return the number of passes through its share that this rank needs for some batches."""
        if self._drop_last:
            return math.ceil(steps * self.batch_size / rows)
        return math.ceil(steps / math.ceil(rows / self.batch_size))

    def _sizes(self, rows: int, steps: int) -> Iterator[int]:
        """The sizes of some batches of a share."""
        if self._drop_last:
            return itertools.repeat(self.batch_size, steps)
        whole_batches, rest = divmod(rows, self.batch_size)
        of_pass = [self.batch_size] * whole_batches + [rest] * (rest > 0)
        return itertools.islice(itertools.cycle(of_pass), steps)

    def _read_blocks(self, windows: Iterator[Window]) -> Generator[Block, None, None]:
        """Blocks of rows, read ahead."""
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
                    yield block
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
        self, windows: Iterator[Window], share: list[Piece], name: object
    ) -> Generator[Block, None, None]:
        """Yield the blocks from memory, as copies.

        Args:
            windows: each of them is the whole share.
            share: is read if that of another name is kept.
            name: of the share.
        """
        if self._kept is None or self._kept_share != name:
            self._kept = None
            self._kept, self._kept_share = self._load(share), name
        kept, rows = self._kept, count(share)
        for window in windows:
            order = np.arange(rows) if window.order is None else window.order
            for start in range(0, rows, self.batch_size):
                places = order[start : start + self.batch_size]
                yield {column: np.take(array, places, axis=0) for column, array in kept.items()}

    def _load(self, share: list[Piece]) -> Block:
        parts: dict[str, list[np.ndarray]] = {name: [] for name in self._files.columns}
        in_order = (Window(group, None) for group in grouped(share, self._most_rows))
        for block in self._read_blocks(in_order):
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


def rebatch(blocks: Iterable[Block], sizes: Iterator[int]) -> Iterator[Block]:
    """Return batches of given sizes from blocks of any sizes.

    Args:
        blocks: have at least as many rows as all batches together.
        sizes: of the batches, at least 1 each.
    """
    parts: list[Block] = []
    missing = next(sizes, 0)
    for block in blocks:
        num_rows = len(next(iter(block.values())))
        start = 0
        while start < num_rows and missing:
            stop = min(start + missing, num_rows)
            parts.append({name: array[start:stop] for name, array in block.items()})
            missing -= stop - start
            start = stop
            if missing == 0:
                yield _joined(parts)
                parts, missing = [], next(sizes, 0)
        del block
        if not missing:
            return


def _joined(blocks: Sequence[Block]) -> Block:
    if len(blocks) == 1:
        return blocks[0]
    return {name: join([block[name] for block in blocks]) for name in blocks[0]}
