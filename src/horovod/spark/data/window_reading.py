"""Reading the rows of a window: some columns at a time, on several threads."""

from __future__ import annotations

import math
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from horovod.errors import UsageError
from horovod.spark.data.columns import join, to_array
from horovod.spark.data.shards import Window, split_evenly

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from concurrent.futures import Future

    from horovod.spark.data.background import Background
    from horovod.spark.data.files import ParquetFiles
    from horovod.spark.data.shards import Piece

Block = dict[str, np.ndarray]
"""Rows of all columns, by name."""

WINDOW_BYTES = 32 << 20
"""Row groups are in memory together, and shuffled together, up to here."""

# What a thread reads at a time, and what is freed at a time: small beside a row group of Spark, 128
# MiB, as all threads and the allocators hold several of it beside the window.
_PART_BYTES = 4 << 20


class WindowReading:
    """A window that is being read on background threads.

    Each task reads some columns of all its rows and hands them over as blocks of rows, so that a
    window can be freed block by block.

    Args:
        files: where the rows are.
        window: which rows.
        background: the threads.
        batch_size: blocks hold a multiple of it, except for the last one.
        who: for messages.
    """

    def __init__(
        self,
        files: ParquetFiles,
        window: Window,
        background: Background,
        batch_size: int,
        who: str,
    ) -> None:
        self._files = files
        self._window = window
        self._background = background
        self._who = who
        parts = math.ceil(window.num_rows * files.row_bytes() / _PART_BYTES)
        columns = files.columns
        # Each group of columns opens each file once more.
        wanted = max(background.num_threads, parts // len(window.pieces))
        num_groups = min(len(columns), wanted)
        self._left = deque(columns[each] for each in split_evenly(len(columns), num_groups))
        self._num_groups = num_groups
        batches = math.ceil(window.num_rows / batch_size)
        self._block_rows = math.ceil(batches / max(1, parts)) * batch_size
        self._futures: deque[Future[deque[Block]]] = deque()

    def submit(self, share: float) -> None:
        """Lets the threads read a share of the window, and what keeps all of them busy.

        Args:
            share: between 0 and 1.
        """
        most = share * self._num_groups + self._background.num_threads - 1
        while self._left and self._num_groups - len(self._left) < most:
            group = self._left.popleft()
            self._futures.append(self._background.submit(partial(self._read, group)))

    def blocks(self) -> Iterator[tuple[Block, float]]:
        """Waits for all of it; then blocks of rows, each with the share that was handed out."""
        self.submit(1.0)
        # Popped, so that nobody keeps a block.
        parts = [self._futures.popleft().result() for _ in range(len(self._futures))]
        count = len(parts[0])
        for number in range(1, count + 1):
            block: Block = {}
            for part in parts:
                block |= part.popleft()
            yield block, number / count

    def cancel(self) -> None:
        """Gives up what was not begun."""
        self._left.clear()
        while self._futures:
            self._futures.popleft().cancel()

    def _read(self, columns: Sequence[str]) -> deque[Block]:
        """Read columns on a thread."""
        chunks: dict[str, list[np.ndarray]] = {name: [] for name in columns}
        for piece in self._window.pieces:
            if self._background.closed:
                raise RuntimeError(f"{self._who}: the reader was closed")
            for name, array in self._read_piece(piece, columns):
                chunks[name].append(array)
                del array
        slices = self._slices()
        blocks: deque[Block] = deque({} for _ in slices)
        for name in columns:
            column = join(chunks.pop(name))
            for block, rows in zip(blocks, slices, strict=True):
                block[name] = self._rows_of(column, rows)
            del column
        return blocks

    def _slices(self) -> list[slice]:
        num_rows = self._window.num_rows
        step = self._block_rows
        return [slice(start, min(start + step, num_rows)) for start in range(0, num_rows, step)]

    def _rows_of(self, column: np.ndarray, rows: slice) -> np.ndarray:
        """A copy that nobody else uses, so that it can be written to."""
        if self._window.order is None:
            return np.array(column[rows])
        taken: np.ndarray = np.take(column, self._window.order[rows], axis=0)
        return taken

    def _read_piece(self, piece: Piece, columns: Sequence[str]) -> Iterator[tuple[str, np.ndarray]]:
        try:
            with self._files.open(piece.file) as file:
                table = file.read_row_group(
                    piece.row_group, columns=list(columns), use_threads=False
                )
            for name in columns:
                column = table.column(name).slice(piece.start, piece.stop - piece.start)
                table = table.drop_columns([name])
                array = to_array(column, name)
                yield name, array if piece.rows is None else array[piece.rows - piece.start]
        except Exception as error:
            kind = UsageError if isinstance(error, UsageError) else RuntimeError
            raise kind(
                f"{self._who}: cannot read row group {piece.row_group} of "
                f"{self._files.paths[piece.file]}: {type(error).__name__}: {error}"
            ) from error
