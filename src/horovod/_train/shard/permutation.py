"""An order of numbers that follows from a seed, without a list of them."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import overload

_MASK = (1 << 64) - 1
_ROUNDS = 8
# Up to this length the order is drawn as a list (Fisher and Yates), which takes some milliseconds:
# of few numbers, a network reaches some orders more often than others.
_LONGEST_LIST = 1 << 13


class Permutation(Sequence[int]):
    """The numbers from 0 to ``length`` - 1, in an order that follows from a seed.

    The order is the same on all machines and with all versions of Python. A long one takes no
    memory and no time before its first number: each number is computed from its place, by a Feistel
    network over pairs of digits (row, column) of a rectangle that is hardly larger than ``length``.

    Args:
        length: how many numbers there are.
        seed: any integer.

    Example:
        >>> sorted(Permutation(5, seed=1)) == [0, 1, 2, 3, 4]
        True
    """

    def __init__(self, length: int, seed: int) -> None:
        self._length = length
        self._rows = max(math.isqrt(max(length - 1, 0)) + 1, 1)
        self._columns = max(-(-length // self._rows), 1)
        self._keys = [_mixed(seed & _MASK, key) for key in range(1, _ROUNDS + 1)]
        self._seed = seed
        self._list = self._drawn() if length <= _LONGEST_LIST else None

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, place: int) -> int: ...

    @overload
    def __getitem__(self, place: slice) -> list[int]: ...

    def __getitem__(self, place: int | slice) -> int | list[int]:
        if isinstance(place, slice):
            return [self._number_at(each) for each in range(*place.indices(self._length))]
        place = operator.index(place)
        if place < 0:
            place += self._length
        if not 0 <= place < self._length:
            raise IndexError(f"place {place} of {self._length}")
        return self._number_at(place)

    def __repr__(self) -> str:
        return f"Permutation({self._length}, seed={self._seed})"

    def _drawn(self) -> list[int]:
        drawn = list(range(self._length))
        for last in range(self._length - 1, 0, -1):
            other = _mixed(self._keys[0], last) % (last + 1)
            drawn[last], drawn[other] = drawn[other], drawn[last]
        return drawn

    def _number_at(self, place: int) -> int:
        if self._list is not None:
            return self._list[place]
        rows, columns = self._rows, self._columns
        while True:
            row, column = divmod(place, columns)
            for index, key in enumerate(self._keys):
                if index % 2:
                    column = (column + _mixed(key, row)) % columns
                else:
                    row = (row + _mixed(key, column)) % rows
            place = row * columns + column
            # Numbers that are too large lead on a cycle back to one that is not.
            if place < self._length:
                return place


def _mixed(key: int, number: int) -> int:
    """Return 64 bits in which each bit of both arguments has changed about half (SplitMix64)."""
    mixed = (key + (number + 1) * 0x9E3779B97F4A7C15) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
    return mixed ^ (mixed >> 31)


def seed_of(seed: int, *numbers: int) -> int:
    """Return a seed that follows from another one and numbers, such as that of the epoch."""
    for number in numbers:
        seed = _mixed(seed & _MASK, number)
    return seed
