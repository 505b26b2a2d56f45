"""Whatever ranks come or go in an epoch of Parquet rows, each row is trained once."""

from __future__ import annotations

from collections import Counter
from itertools import cycle, islice
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark")

from horovod.spark.data.division import Division, division_after
from horovod.spark.data.shards import Order, Piece, count, cut, left_after, whole

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Row = tuple[int, int, int]
FILES = st.lists(st.lists(st.integers(0, 9), max_size=4), min_size=1, max_size=4).filter(
    lambda files: sum(map(sum, files)) > 0
)


def rows_in(pieces: Sequence[Piece]) -> list[Row]:
    return [(piece.file, piece.row_group, int(row)) for piece in pieces for row in piece.numbers()]


def rows_of_rank(
    division: Division, left: list[Piece], order: Order, where: tuple[int, int]
) -> Iterator[Row]:
    """Return the rows of a rank's share in the order in which it trains them."""
    rank, stretch = where
    share = cut(left, division.share(rank))
    for window in order.passes(share, rank, 1, stretch):
        read = rows_in(window.pieces)
        places = range(len(read)) if window.order is None else window.order
        yield from (read[place] for place in places)


@given(
    files=FILES,
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=5),
    batch_size=st.integers(1, 4),
    seed=st.none() | st.integers(0, 5),
    most_rows=st.none() | st.integers(1, 20),
    data=st.data(),
)
def test_each_row_is_trained_once_whoever_comes_or_goes(
    files: list[list[int]],
    sizes: list[int],
    batch_size: int,
    seed: int | None,
    most_rows: int | None,
    data: st.DataObject,
) -> None:
    order = Order(None if seed is None else (seed, 0), most_rows)
    pieces = whole(files)
    stretches: list[tuple[int, int]] = []
    trained: Counter[Row] = Counter()
    for size in sizes:
        left = left_after(stretches, pieces, batch_size, False, order)
        division = division_after(stretches, count(pieces), size, batch_size, False)
        assert division.rows == count(left)
        if not division.rows:
            break
        is_last = len(stretches) == len(sizes) - 1
        steps = division.steps if is_last else data.draw(st.integers(0, division.steps))
        for rank in range(size):
            rows = list(rows_of_rank(division, left, order, (rank, len(stretches))))
            assert len(rows) == len(division.share(rank))
            counts = [division.counted(rank, step) for step in range(steps)]
            trained.update(islice(rows, sum(counts)))
            assert sum(counts) == division.done(rank, steps)
        for step in range(division.steps):
            ranks = [division.counted(rank, step) for rank in range(size)]
            assert sum(ranks) == division.total(step)
        totals = [division.total(step) for step in range(division.steps)]
        assert all(totals)
        assert sum(totals) == division.rows
        assert all(division.is_full(step) for step in range(division.steps - 1))
        stretches.append((size, steps))
    left_at_end = left_after(stretches, pieces, batch_size, False, order)
    assert trained + Counter(rows_in(left_at_end)) == Counter(rows_in(pieces))
    assert max(trained.values(), default=0) <= 1


@given(
    files=FILES,
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    batch_size=st.integers(1, 4),
    steps=st.integers(0, 9),
)
def test_whole_batches_come_until_the_steps_are_done(
    files: list[list[int]], sizes: list[int], batch_size: int, steps: int
) -> None:
    """With a given number of steps, rows come again only when all of them are done."""
    order = Order((1, 2), 8)
    pieces = whole(files)
    stretches = list(zip(sizes, cycle([steps]), strict=False))
    left = left_after(stretches, pieces, batch_size, True, order)
    assert 0 < count(left) == division_after(stretches, count(pieces), 2, batch_size, True).rows
    assert max(Counter(rows_in(left)).values()) == 1
    assert set(rows_in(left)) <= set(rows_in(pieces))


def test_a_piece_of_scattered_rows_can_be_cut() -> None:
    piece = Piece(0, 1, 2, 9, np.array([2, 5, 6, 8]))
    assert piece.cut(1, 3) == Piece(0, 1, 5, 7)
    assert rows_in([piece.cut(0, 2)]) == [(0, 1, 2), (0, 1, 5)]
