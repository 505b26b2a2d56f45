"""The steps of values that are logged without one. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class StepCount:
    """Counts the steps of calls that do not give one, from 0.

    A call belongs to the current step unless it repeats a name of that step: then it begins the
    next one. So calls with different names in one iteration share a step, and a value that is
    logged rarely has the step of those around it.

    Ranks that came later count from another number. They follow rank 0 as soon as they hear of its
    steps, in case that they become rank 0.
    """

    def __init__(self) -> None:
        self._step = 0
        self._shift = 0
        self._names: set[str] = set()

    def count(self, names: Iterable[str]) -> int:
        """Return the step of a call that gives none, as this rank counts without rank 0."""
        names = set(names)
        if not self._names.isdisjoint(names):
            self._step += 1
            self._names.clear()
        self._names |= names
        return self._step

    def go_to(self, step: int, names: Iterable[str]) -> int:
        """Go on behind a step that a call gives; return it as this rank counts without rank 0."""
        if step != self.shifted(self._step):
            self._names.clear()
        self._step = step - self._shift
        self._names |= set(names)
        return self._step

    def shifted(self, step: int) -> int:
        """Return the step of rank 0 for a step that this rank has counted."""
        return step + self._shift

    @property
    def current(self) -> tuple[int, frozenset[str]]:
        """The step of rank 0 that this rank is in, and the names that it has logged in it."""
        return self.shifted(self._step), frozenset(self._names)

    def follow(self, step: int, of_rank_0: int) -> None:
        """Note which step rank 0 has where this rank has counted ``step``."""
        self._shift = of_rank_0 - step
