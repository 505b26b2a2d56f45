"""How the elements of an array are divided among the ranks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from horovod import _native
from horovod._train.optimizer_options import reduces
from horovod._train.process_set import group_of

if TYPE_CHECKING:
    from horovod._train.process_set import ProcessSet

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Division:
    """The part of one rank in a process set.

    The elements of an array, in row-major order, are divided as the engine divides rows: each rank
    has a contiguous range, and the first ranks have one element more if the number is not a
    multiple of ``size``. So a reduce-scatter of flat arrays leaves each rank its share.

    Attributes:
        rank: of this process in the set; 0 outside of it.
        size: how many ranks the set has; 1 on ranks outside of it, which keep everything.
    """

    rank: int
    size: int

    @staticmethod
    def of(process_set: ProcessSet) -> Division:
        """Return the division among the ranks that the set has now.

        Raises:
            NotInitializedError: ``hvd.init()`` was not called.
        """
        group = group_of(process_set)
        return Division(group.rank, group.size) if reduces(group) else Division(0, 1)

    def counts(self, shape: Shape) -> tuple[int, ...]:
        """Return how many elements of an array each rank has."""
        total = math.prod(shape)
        return tuple(_native.share_of(total, rank, self.size) for rank in range(self.size))

    def range_of(self, shape: Shape) -> tuple[int, int]:
        """Return the first element of this rank, and the one after its last."""
        counts = self.counts(shape)
        begin = sum(counts[: self.rank])
        return begin, begin + counts[self.rank]

    def piece_of(self, array: Any) -> Any:
        """Return this rank's elements of a whole array or tensor, in one dimension.

        With NumPy and PyTorch, they stay in the memory of the array.
        """
        begin, end = self.range_of(tuple(array.shape))
        return array.reshape(-1)[begin:end]
