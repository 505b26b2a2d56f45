"""Prints verdicts as they change, and sums up at the end of a job."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from horovod.runner.observation.records import JobView, Verdict

# A verdict that is true in so many views in a row is printed.
_STEADY = 4
# Of the views, from which on a verdict is part of the summary.
_OFTEN = 0.2


class VerdictLines:
    """Says why steps are slow.

    Args:
        say: takes one line.
    """

    def __init__(self, say: Callable[[str], object]) -> None:
        self._say = say
        self._last: tuple[str, int, str] = ("unknown", -1, "")
        self._seen = 0
        self._printed: tuple[str, int, str] = ("unknown", -1, "")
        self._counts: Counter[tuple[str, int, str]] = Counter()
        self._examples: dict[tuple[str, int, str], Verdict] = {}
        self._num_views = 0

    def take(self, view: JobView) -> None:
        """Take the next view."""
        first = view.verdicts[0]
        key = (first.kind, first.rank, first.phase)
        self._seen = self._seen + 1 if key == self._last else 1
        self._last = key
        if first.kind != "unknown":
            self._num_views += 1
            for verdict in view.verdicts:
                each = (verdict.kind, verdict.rank, verdict.phase)
                self._counts[each] += 1
                # The latest one, but a busy machine may look too seldom to see the line each time.
                if verdict.place or not (each in self._examples and self._examples[each].place):
                    self._examples[each] = verdict
        if self._seen >= _STEADY and key != self._printed and first.kind != "unknown":
            self._printed = key
            self._say(one_line_of(self._examples[key]))

    def sum_up(self) -> None:
        """Print the reasons that were true for a good part of the job."""
        for key, count in self._counts.most_common():
            verdict = self._examples[key]
            if (
                verdict.kind not in ("healthy", "compute", "unknown")
                and count >= _OFTEN * self._num_views
            ):
                part = f"{100 * count / self._num_views:.0f} %"
                self._say(f"in {part} of the time watched: {one_line_of(verdict)}")


def one_line_of(verdict: Verdict) -> str:
    """Return a verdict and its advice as one line."""
    return f"{verdict.text}; {verdict.advice}" if verdict.advice else verdict.text
