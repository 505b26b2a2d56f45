"""Which rows a rank reads, and in which order. Pure functions."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class Piece(NamedTuple):
    """Consecutive rows of one row group.

    Attributes:
        file: the number of the file.
        row_group: its number in the file.
        start, stop: the rows, counted in the row group.
    """

    file: int
    row_group: int
    start: int
    stop: int

    @property
    def num_rows(self) -> int:
        """How many rows it has."""
        return self.stop - self.start


def shard(rows_of_files: Sequence[Sequence[int]], rank: int, size: int) -> list[Piece]:
    """The share of a rank, in file order: consecutive rows, as many on all ranks to within one.

    At most the first and the last row group of a share are shared with another rank. If there are
    fewer rows than ranks, some rows are in several shares, and none is empty.

    Args:
        rows_of_files: for each file the rows in each of its row groups; some row in all.
        rank, size: which share of how many.
    """
    num_rows = sum(map(sum, rows_of_files))
    first = rank * num_rows // size
    last = max(first + 1, (rank + 1) * num_rows // size)
    pieces = []
    offset = 0
    for file, row_groups in enumerate(rows_of_files):
        for row_group, rows in enumerate(row_groups):
            start, stop = max(first - offset, 0), min(last - offset, rows)
            if start < stop:
                pieces.append(Piece(file, row_group, start, stop))
            offset += rows
    return pieces


def windows(pieces: Sequence[Piece], most_rows: int) -> list[list[Piece]]:
    """Pieces that are in memory together: as many as fit into some rows, at least one."""
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
    """What is read, and shuffled, together.

    Attributes:
        pieces: in the order in which they are read.
        order: for each row to hand out its number among the rows read; None for the order as read.
        ends_pass: whether the rank has now read all of its share.
    """

    pieces: list[Piece]
    order: np.ndarray | None
    ends_pass: bool

    @property
    def num_rows(self) -> int:
        """Of all pieces."""
        return sum(piece.num_rows for piece in self.pieces)


def passes(
    pieces: Sequence[Piece], most_rows: int, count: int, seed: Sequence[int] | None
) -> Iterator[Window]:
    """The windows of a rank that goes through its share some times.

    Args:
        pieces: its share.
        most_rows: see :func:`windows`.
        count: how often.
        seed: at least one number, from which the order of row groups and rows follows, another one
            in each pass; None for file order.
    """
    for number in range(count):
        generator = None if seed is None else np.random.default_rng([*seed, number])
        ordered = list(pieces)
        if generator is not None:
            ordered = [pieces[index] for index in generator.permutation(len(pieces))]
        grouped = windows(ordered, most_rows)
        for index, group in enumerate(grouped):
            num_rows = sum(piece.num_rows for piece in group)
            order = None if generator is None else generator.permutation(num_rows)
            yield Window(group, order, index == len(grouped) - 1)
