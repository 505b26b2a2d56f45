"""Plan which rows a rank reads, and in which order. Pure functions."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from horovod.spark.data.division import Division

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from horovod.spark.data.division import Stretches


class Piece(NamedTuple):
    """Rows of one row group.

    Attributes:
        file: the number of the file.
        row_group: its number in the file.
        start, stop: bounds of the rows, counted in the row group.
        rows: the rows between them, ascending; None for all.
    """

    file: int
    row_group: int
    start: int
    stop: int
    rows: np.ndarray | None = None

    @property
    def num_rows(self) -> int:
        """Return the number of rows."""
        return self.stop - self.start if self.rows is None else len(self.rows)

    def numbers(self) -> np.ndarray:
        """Return the numbers of the rows in the row group."""
        return np.arange(self.start, self.stop) if self.rows is None else self.rows

    def cut(self, first: int, last: int) -> Piece:
        """Return the rows from ``first`` to ``last``, counted in the piece."""
        if self.rows is None:
            return self._replace(start=self.start + first, stop=self.start + last)
        return _piece(self.file, self.row_group, self.rows[first:last])


def whole(rows_of_files: Sequence[Sequence[int]]) -> list[Piece]:
    """Return all row groups.

    Args:
        rows_of_files: for each file the rows in each of its row groups; some row in all.
    """
    return [
        Piece(file, row_group, 0, rows)
        for file, row_groups in enumerate(rows_of_files)
        for row_group, rows in enumerate(row_groups)
        if rows
    ]


def count(pieces: Iterable[Piece]) -> int:
    """Return the number of rows in some pieces."""
    return sum(piece.num_rows for piece in pieces)


def cut(pieces: Sequence[Piece], rows: range) -> list[Piece]:
    """Return consecutive rows of some pieces.

    At most the first and the last row group of it are shared with other such ranges.

    Args:
        pieces: that follow each other.
        rows: which of their rows, counted from the first piece on.
    """
    found = []
    offset = 0
    for piece in pieces:
        first, last = max(rows.start - offset, 0), min(rows.stop - offset, piece.num_rows)
        if first < last:
            found.append(piece.cut(first, last))
        offset += piece.num_rows
    return found


def grouped(pieces: Sequence[Piece], most_rows: int) -> list[list[Piece]]:
    """Return the pieces that are in memory together: what fits into some rows, or one."""
    found: list[list[Piece]] = []
    room = 0
    for piece in pieces:
        if not found or piece.num_rows > room:
            found.append([])
            room = most_rows
        found[-1].append(piece)
        room -= piece.num_rows
    return found


def split_evenly(count: int, parts: int) -> list[slice]:
    """Slices of consecutive numbers below a count, with the same length to within one."""
    bounds = [part * count // parts for part in range(parts + 1)]
    return [slice(*each) for each in itertools.pairwise(bounds)]


class Window(NamedTuple):
    """The rows that are read, and shuffled, together.

    Attributes:
        pieces: in the order in which they are read.
        order: for each row to hand out its number among the rows read; None for the order as read.
    """

    pieces: list[Piece]
    order: np.ndarray | None

    @property
    def num_rows(self) -> int:
        """Return the number of rows of all pieces."""
        return count(self.pieces)

    def after(self, done: int) -> list[Piece]:
        """Return what is left when the first rows to hand out are done."""
        bounds = np.cumsum([0, *(piece.num_rows for piece in self.pieces)])
        order = np.arange(bounds[-1]) if self.order is None else self.order
        left = np.sort(order[done:])
        places = np.searchsorted(left, bounds)
        return [
            _piece(piece.file, piece.row_group, piece.numbers()[left[start:stop] - bound])
            for piece, bound, (start, stop) in zip(
                self.pieces, bounds[:-1], itertools.pairwise(places), strict=True
            )
            if start < stop
        ]


class Order(NamedTuple):
    """The inputs to the order of an epoch's rows; the same on all ranks.

    Attributes:
        seed: of the run and the number of the epoch; None for the order of the files.
        most_rows: see :func:`grouped`; None to read a share as one window, in the order of files.
    """

    seed: tuple[int, ...] | None
    most_rows: int | None

    def passes(
        self, pieces: Sequence[Piece], rank: int, number: int, stretch: int = 0
    ) -> Iterator[Window]:
        """Return the windows of a rank that goes through its share some times.

        Args:
            pieces: its share.
            rank: whose share it is.
            number: how often; each time in another order.
            stretch: how many stretches of the epoch came before.
        """
        for index in range(number):
            generator = None
            if self.seed is not None:
                generator = np.random.default_rng([*self.seed, rank, stretch, index])
            ordered = list(pieces)
            if generator is not None and self.most_rows is not None:
                ordered = [pieces[place] for place in generator.permutation(len(pieces))]
            groups = [ordered] if self.most_rows is None else grouped(ordered, self.most_rows)
            for group in groups:
                yield Window(
                    group, None if generator is None else generator.permutation(count(group))
                )


def left_after(
    stretches: Stretches,
    pieces: Sequence[Piece],
    batch_size: int,
    drop_last: bool,
    order: Order,
) -> list[Piece]:
    """Return the rows that some stretches have left of an epoch, the same on all ranks.

    Args:
        stretches: that have ended.
        pieces: all rows of the epoch.
        batch_size, drop_last: see :class:`Division`.
        order: of the epoch.
    """
    left = list(pieces)
    for stretch, (size, steps) in enumerate(stretches):
        division = Division(count(left), size, batch_size, drop_last)
        rest: list[Piece] = []
        for rank in range(size):
            if not division.own_rows(rank):
                continue
            done = division.done(rank, steps)
            for window in order.passes(cut(left, division.share(rank)), rank, 1, stretch):
                if done < window.num_rows:
                    rest += window.after(done) if done else window.pieces
                done = max(0, done - window.num_rows)
        left = _joined(rest) or (list(pieces) if drop_last else [])
    return left


def _joined(pieces: Iterable[Piece]) -> list[Piece]:
    """Return pieces in the order of the files, one of each row group."""
    by_group: dict[tuple[int, int], list[Piece]] = {}
    for piece in pieces:
        by_group.setdefault(piece[:2], []).append(piece)
    return [
        parts[0]
        if len(parts) == 1
        else _piece(*group, np.sort(np.concatenate([part.numbers() for part in parts])))
        for group, parts in sorted(by_group.items())
    ]


def _piece(file: int, row_group: int, rows: np.ndarray) -> Piece:
    """Return the piece of some rows, ascending; consecutive ones by their bounds alone."""
    start, stop = int(rows[0]), int(rows[-1]) + 1
    return Piece(file, row_group, start, stop, None if len(rows) == stop - start else rows)
