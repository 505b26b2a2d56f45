"""Jobs of threads that serve one example after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from thread_ranks import ThreadRanks

if TYPE_CHECKING:
    from strategies import Settings

_MOST_OPEN = 8


class Worlds:
    """Hands out jobs, again and again those that have not failed, so that state builds up."""

    def __init__(self) -> None:
        self._open: dict[tuple[int, Settings], ThreadRanks] = {}

    def get(self, size: int, settings: Settings) -> ThreadRanks:
        """A job of ``size`` ranks.

        Args:
            size: the number of ranks.
            settings: of their engines.
        """
        key = (size, settings)
        ranks = self._open.pop(key, None)
        if ranks is not None and ranks.failed:
            ranks.close("its example failed")
            ranks = None
        if ranks is None:
            ranks = ThreadRanks(size, settings.options())
        self._open[key] = ranks
        while len(self._open) > _MOST_OPEN:
            self._open.pop(next(iter(self._open))).close("it was not used for long")
        return ranks

    def close(self) -> None:
        """Closes all jobs."""
        for ranks in self._open.values():
            ranks.close("the tests are over")
        self._open.clear()
