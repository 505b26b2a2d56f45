"""Counts the training steps of a rank, for those who watch the job."""

from __future__ import annotations

import time
from collections import deque

_MOST_KEPT = 1024


class Steps:
    """Number and lengths of the steps. One thread counts, another one reads.

    Attributes:
        number: of steps so far.
    """

    def __init__(self) -> None:
        self.number = 0
        self._by_hand = False
        self._last_at = 0.0
        self._lengths: deque[float] = deque(maxlen=_MOST_KEPT)

    def count_by_hand(self) -> None:
        """Note that a step has ended, as the program says; :meth:`count` does nothing from now on.

        An optimizer may have counted the first step before.
        """
        if not self._by_hand:
            self._by_hand = True
            if self.number:
                self._last_at = time.monotonic()
                return
        self._note()

    def count(self) -> None:
        """Note that a step has ended, as an optimizer says; takes less than a microsecond."""
        if not self._by_hand:
            self._note()

    def _note(self) -> None:
        now = time.monotonic()
        if self.number:
            self._lengths.append(now - self._last_at)
        self._last_at = now
        self.number += 1

    def take_lengths(self) -> list[float]:
        """Return the lengths of the steps since the last call, in seconds, at most 1,024."""
        lengths = []
        while self._lengths:
            lengths.append(self._lengths.popleft())
        return lengths
