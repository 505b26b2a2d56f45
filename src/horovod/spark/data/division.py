"""Divide the rows of an epoch among ranks, also those that are left after a change. Pure.

Each rank has a range of consecutive rows, so that it reads few row groups, and takes a batch of it
in each step. A stretch of an epoch is what a number of ranks trains of it before ranks come or go:
``(ranks, steps)``. The stretches of an epoch say which of its rows are done, and so they are all
that a commit keeps. Which rows are left, and in which order they come: :mod:`shards`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

Stretches = Sequence[tuple[int, int]]
"""For each stretch of an epoch that has ended, its number of ranks and the steps they took."""


@dataclass(frozen=True)
class Division:
    """The division of rows among ranks, and of each rank's rows into steps.

    Attributes:
        rows: how many there are.
        size: number of ranks.
        batch_size: rows of each rank and step.
        drop_last: all batches are whole, and a last step without enough rows is left out;
            otherwise each row comes once, and in the last step ranks may have fewer rows, or none.

    Example:
        >>> division = Division(rows=10, size=2, batch_size=4, drop_last=False)
        >>> division.steps, division.share(1), division.counted(1, step=1)
        (2, range(5, 10), 1)
    """

    rows: int
    size: int
    batch_size: int
    drop_last: bool

    @property
    def steps(self) -> int:
        """Steps for all rows, the same on all ranks; at least 1 if there are rows."""
        if not self.rows:
            return 0
        exact = self.rows / (self.batch_size * self.size)
        return max(1, math.floor(exact)) if self.drop_last else math.ceil(exact)

    def share(self, rank: int) -> range:
        """Return the rows that a rank reads, which differ by at most one in their number.

        If there are fewer rows than ranks, several ranks read the same row.
        """
        first = rank * self.rows // self.size
        return range(first, max(first + 1, (rank + 1) * self.rows // self.size))

    def own_rows(self, rank: int) -> int:
        """Return how many rows of its share are not those of another rank: all, or none."""
        return (rank + 1) * self.rows // self.size - rank * self.rows // self.size

    def counted(self, rank: int, step: int) -> int:
        """Return how many rows of a rank count in a step; 0 if it repeats rows meanwhile."""
        if self.drop_last:
            return self.batch_size
        return min(self.batch_size, max(0, self.own_rows(rank) - step * self.batch_size))

    def done(self, rank: int, steps: int) -> int:
        """Return how many rows of its share a rank has done after some steps."""
        return min(self.own_rows(rank), steps * self.batch_size)

    def total(self, step: int) -> int:
        """Return how many rows of all ranks count in a step."""
        if self.drop_last:
            return self.size * self.batch_size
        fewest, longer = divmod(self.rows, self.size)
        before = step * self.batch_size
        with_fewest = min(self.batch_size, max(0, fewest - before))
        with_more = min(self.batch_size, max(0, fewest + 1 - before))
        return (self.size - longer) * with_fewest + longer * with_more

    def is_full(self, step: int) -> bool:
        """Return whether all ranks have a whole batch in a step."""
        return self.total(step) == self.size * self.batch_size

    def after(self, steps: int, size: int) -> Division:
        """Return the division of what is left after some steps among another number of ranks."""
        done = sum(self.done(rank, steps) for rank in range(self.size))
        return Division(max(0, self.rows - done), size, self.batch_size, self.drop_last)


def division_after(
    stretches: Stretches, rows: int, size: int, batch_size: int, drop_last: bool
) -> Division:
    """Return how ranks divide what some stretches have left of an epoch.

    With ``drop_last``, an epoch may have more steps than the rows are enough for: when all rows
    are done, they come again.

    Args:
        stretches: that have ended.
        rows: of the whole epoch.
        size: number of ranks now.
        batch_size, drop_last: see :class:`Division`.
    """
    sizes = [*(stretch[0] for stretch in stretches), size]
    division = Division(rows, sizes[0], batch_size, drop_last)
    for (_, steps), following in zip(stretches, sizes[1:], strict=True):
        division = division.after(steps, following)
        if drop_last and not division.rows:
            division = Division(rows, following, batch_size, drop_last)
    return division
