"""Which rank makes the others wait, and how much a job would gain without it. Pure.

In a step that all ranks do together, each computes and then waits. A rank that waits for the part
``f`` of its time computes for ``1 - f`` of it, and who computes longest decides how long a step
takes. Without rank r, the one that computes longest among the others would decide, so a step would
be shorter by the part ``min(f of the others) - f of r``: its *gain*. Two ranks that are equally
slow, as on a host with too many of them, have no gain each: the job needs them both gone.

Single windows say little: a checkpoint, an evaluation or another program disturbs them. So the
median of some windows counts, and a rank that is called slow remains so until its gain is small.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from horovod._base import fast_dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from horovod._rendezvous.waits import Waits

# A rank that is slow from now on is named within 20 s: a window that has begun, three whole ones,
# and up to one more until what was told last is read.
WINDOW_S = 4.0
WINDOWS = 5
FEWEST_WINDOWS = 3
SLOW_GAIN = 0.10
NORMAL_GAIN = 0.05


@fast_dataclass.dataclass(frozen=True)
class Finding:
    """A rank is slow from now on, or no longer.

    Attributes:
        rank: which one.
        gain: the part of a step's time that the job would save without it.
        is_slow: whether it is slow now.
    """

    rank: int
    gain: float
    is_slow: bool


@dataclass
class Slowness:
    """Measurements of one rank.

    Attributes:
        gains: in the last windows.
        is_slow: whether it was found to be slow, and not yet to be normal again.
        slow_s: for how long it was, until now.
        worst_gain: the highest median while it was.
    """

    gains: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOWS))
    is_slow: bool = False
    slow_s: float = 0.0
    worst_gain: float = 0.0

    def median_gain(self) -> float:
        """Return the median of the gains."""
        from statistics import median  # takes its time to load: a job is to start soon

        return median(self.gains)


def gains(waiting: Mapping[int, float]) -> dict[int, float]:
    """The gain of each rank.

    Args:
        waiting: the part of its time that each rank has waited, 0 to 1.

    Example:
        >>> gains({0: 0.5, 1: 0.0, 2: 0.25})
        {0: 0.0, 1: 0.25, 2: 0.0}
    """
    if len(waiting) < 2:
        return dict.fromkeys(waiting, 0.0)
    least, second = sorted(waiting.values())[:2]
    slowest = min(waiting, key=lambda rank: waiting[rank])
    return {rank: second - least if rank == slowest else 0.0 for rank in waiting}


class SlowWorkers:
    """Finds slow ranks from what all ranks tell of their waits.

    Args:
        size: how many ranks there are; each has to tell before a window ends.
        window_s: the least length of a window, in seconds. While nobody has waited at all, as in
            a long step, it goes on.
    """

    def __init__(self, size: int, window_s: float = WINDOW_S) -> None:
        self._size = size
        self._window_s = window_s
        self._began: dict[int, Waits] = {}
        self.ranks = [Slowness() for _ in range(size)]

    def add(self, told: Mapping[int, Waits]) -> list[Finding]:
        """Takes what the ranks have told last, and returns what is new about them."""
        if len(told) < self._size:
            return []
        if not self._began:
            self._began = dict(told)
            return []
        lengths = {rank: each.at_s - self._began[rank].at_s for rank, each in told.items()}
        waited = {rank: each.waited_s - self._began[rank].waited_s for rank, each in told.items()}
        # Reports of ranks come at different times, so a window may miss a bit of its last interval.
        if min(lengths.values()) < 0.8 * self._window_s or not any(waited.values()):
            return []
        self._began = dict(told)
        waiting = {rank: min(1.0, max(0.0, waited[rank] / lengths[rank])) for rank in told}
        found = [self._judge(rank, gain, lengths[rank]) for rank, gain in gains(waiting).items()]
        return [finding for finding in found if finding is not None]

    def _judge(self, rank: int, gain: float, length_s: float) -> Finding | None:
        one = self.ranks[rank]
        one.gains.append(gain)
        usual = one.median_gain()
        if not one.is_slow:
            # The lower of two medians is no majority.
            many = sum(each >= SLOW_GAIN for each in one.gains) >= FEWEST_WINDOWS
            if not (many and usual >= SLOW_GAIN):
                return None
            one.is_slow = True
            one.slow_s = sum(length_s for _ in one.gains)
            one.worst_gain = usual
            return Finding(rank, usual, True)
        one.slow_s += length_s
        one.worst_gain = max(one.worst_gain, usual)
        if usual < NORMAL_GAIN:
            one.is_slow = False
            return Finding(rank, usual, False)
        return None


def describe(finding: Finding, who: str) -> str:
    """One line about a rank that is slow, or no longer is.

    Example:
        >>> describe(Finding(3, 0.38, True), "rank 3 on b")
        'rank 3 on b makes the others wait: without it, a step would take 38 % less time'
    """
    if not finding.is_slow:
        return f"{who} no longer makes the others wait"
    return f"{who} makes the others wait: {would_save(finding.gain)}"


def would_save(gain: float) -> str:
    """Return what a job would gain without a rank, in words."""
    return f"without it, a step would take {round(100 * gain)} % less time"


def summary(ranks: Mapping[str, Slowness], elapsed_s: float) -> str:
    """One line at the end of a job about the ranks that were slow; empty if none was.

    Args:
        ranks: what is known of each, by its name.
        elapsed_s: how long the job took.

    Example:
        >>> summary({"rank 1 on b": Slowness(slow_s=60.0, worst_gain=0.38)}, 90.0)
        'the others waited for rank 1 on b for 60 of 90 s: without it, a step took 38 % less time'
    """
    parts = [
        f"{who} for {one.slow_s:.0f} of {elapsed_s:.0f} s: without it, "
        f"a step took {100 * one.worst_gain:.0f} % less time"
        for who, one in ranks.items()
        if one.slow_s > 0
    ]
    return f"the others waited for {'; '.join(parts)}" if parts else ""


@fast_dataclass.dataclass(frozen=True)
class SlowMember:
    """A worker of an elastic job that is slow now.

    Attributes:
        identity: of the worker.
        name: with its rank, for users.
        gain: the part of a step's time that the job would save without it: of late, as a median.
    """

    identity: str
    name: str
    gain: float


class SlowMembers:
    """Finds slow workers of an elastic job. Windows begin anew with each generation.

    Args:
        window_s: see :class:`SlowWorkers`.
    """

    def __init__(self, window_s: float = WINDOW_S) -> None:
        self._window_s = window_s
        self._identities: list[str] = []
        self._workers = SlowWorkers(0, window_s)
        self._named: set[str] = set()
        self._totals: dict[str, Slowness] = {}

    def follow(self, identities: Sequence[str]) -> None:
        """A generation begins.

        Args:
            identities: of its members, in the order of their ranks.
        """
        self._totals = self.totals()
        self._named &= set(identities)
        self._identities = list(identities)
        self._workers = SlowWorkers(len(identities), self._window_s)

    def add(self, told: Mapping[int, Waits]) -> list[str]:
        """Takes what the ranks of the generation have told last; returns what to tell the user.

        A worker that is slow in one generation and in the next is named once.
        """
        lines = []
        for finding in self._workers.add(told):
            identity = self._identities[finding.rank]
            if finding.is_slow and identity in self._named:
                continue
            self._named ^= {identity}
            lines.append(describe(finding, self._name(finding.rank)))
        return lines

    def slow(self) -> list[SlowMember]:
        """Return the members that are slow now."""
        return [
            SlowMember(self._identities[rank], self._name(rank), one.median_gain())
            for rank, one in enumerate(self._workers.ranks)
            if one.is_slow
        ]

    def totals(self) -> dict[str, Slowness]:
        """Return the measurements of each worker that was ever slow, by its identity."""
        totals = dict(self._totals)
        for identity, one in zip(self._identities, self._workers.ranks, strict=True):
            if one.slow_s > 0:
                before = totals.get(identity, Slowness())
                worst = max(before.worst_gain, one.worst_gain)
                totals[identity] = Slowness(slow_s=before.slow_s + one.slow_s, worst_gain=worst)
        return totals

    def _name(self, rank: int) -> str:
        return f"rank {rank} ({self._identities[rank]})"
