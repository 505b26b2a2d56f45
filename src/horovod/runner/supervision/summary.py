"""Summarizes a failed job in one line: its duration, and the end of each rank. Pure."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from horovod.runner.supervision.failure import RankExit

_MOST_GROUPS = 6


def summarize(
    first: RankExit | None,
    exits: Sequence[RankExit],
    stopped: Iterable[int],
    lost: Iterable[int],
    elapsed_s: float,
) -> str:
    """Return one line on how long the job ran and how each rank ended.

    Args:
        first: the failure that came first; None if the job was stopped from outside.
        exits: of the ranks that ended by themselves.
        stopped: the ranks that were ended by the launcher.
        lost: the ranks of whose end nothing was heard.
        elapsed_s: since the start of the job.

    Example:
        >>> summarize(None, [], [2, 0, 1], [], 3.21)
        'the job ran for 3.2 s: ranks 0 to 2 were stopped'
    """
    stopped, lost = list(stopped), list(lost)
    if len(exits) + len(stopped) + len(lost) == 1:
        return f"the job ran for {_duration(elapsed_s)}"
    others = [rank_exit for rank_exit in exits if rank_exit is not first]
    groups = [] if first is None else [(f"{_ending(first)} first", [first.rank])]
    endings: dict[str, list[int]] = {}
    for other in others:
        endings.setdefault(_ending(other), []).append(other.rank)
    groups += endings.items()
    groups.append(("were stopped", stopped))
    groups.append(("were lost", lost))
    parts = [f"{_ranks(ranks)} {_singular(text, ranks)}" for text, ranks in groups if ranks]
    return f"the job ran for {_duration(elapsed_s)}: {'; '.join(parts)}" if parts else ""


def _ending(each: RankExit) -> str:
    if each.start_error:
        return "could not be started"
    if each.returncode == 0:
        return "finished"
    if each.is_follow_up:
        return "failed because they lost a peer"
    if each.signal_name is not None:
        return f"were killed by {each.signal_name}"
    return f"exited with code {each.exit_code}"


def _singular(text: str, ranks: Sequence[int]) -> str:
    if len(ranks) > 1:
        return text
    return text.replace("were ", "was ").replace("because they", "because it")


def _ranks(ranks: Iterable[int]) -> str:
    """Return names such as "rank 3" or "ranks 0, 2 to 5"."""
    ordered = sorted(ranks)
    runs = []
    for _, members in groupby(enumerate(ordered), key=lambda pair: pair[1] - pair[0]):
        run = [rank for _, rank in members]
        runs += [f"{run[0]} to {run[-1]}"] if len(run) > 2 else [str(rank) for rank in run]
    hidden = len(runs) - _MOST_GROUPS
    if hidden > 0:
        runs = [*runs[:_MOST_GROUPS], "…"]
    return f"rank{'s' if len(ordered) > 1 else ''} {', '.join(runs)}"


def _duration(seconds: float) -> str:
    """Return a duration such as "3.2 s", "4 min 5 s" or "2 h 3 min"."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes = int(seconds) // 60
    if minutes < 60:
        return f"{minutes} min {int(seconds) % 60} s"
    return f"{minutes // 60} h {minutes % 60} min"
