"""Which of several failures was the first, and how to say it. Pure.

When one rank dies, the others fail a moment later because they lost it. The user needs the one
that started it. What a rank reported of its end tells which is which; where it reported nothing,
the last lines of its stderr have to do.
"""

from __future__ import annotations

import re
import signal
from typing import TYPE_CHECKING

from horovod._base.fast_dataclass import dataclass
from horovod.runner.supervision.greetings import without_greetings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from horovod._rank.reports.end import EndReport

# Exits this close together may be reported in any order by the kernel.
SAME_INSTANT_S = 0.1

# What a rank raises because another one went away. MismatchError and StalledError are not here:
# every rank raises them, and each of these messages tells the whole story.
_FOLLOW_UP = re.compile(r"\b(?:PeerLostError|ShutDownError|HorovodInternalError)\b")
# The end that such an error, or one in init, names as its cause.
_NAMED = re.compile(
    r"\b(?:PeerLostError|ShutDownError|HorovodInternalError|StartError): .*?"
    r"\brank (\d+)(?: \([^)]*\))? (?:was lost|has shut Horovod down|could not start)"
)


@dataclass(frozen=True)
class RankExit:
    """The end of one rank.

    Attributes:
        rank, hostname: which rank, and where it ran.
        returncode: exit code, or minus the number of the signal that killed it.
        at_s: when the launcher heard of it, seconds on any one clock.
        stderr_tail: the last lines that it wrote to stderr.
        start_error: why its command could not be started; empty if it ran.
        worker: the identity of the process, whatever its rank; -1 if nobody asks.
        report: what the rank itself said why it ends; None if it said nothing.
        ending: how it ended, in words, where nobody knows an exit code; empty if that is known.
    """

    rank: int
    hostname: str
    returncode: int
    at_s: float
    stderr_tail: tuple[str, ...] = ()
    start_error: str = ""
    worker: int = -1
    report: EndReport | None = None
    ending: str = ""

    @property
    def signal_name(self) -> str | None:
        """Name of the signal that killed the rank, such as SIGKILL; None if none did."""
        if self.returncode >= 0:
            return None
        try:
            return signal.Signals(-self.returncode).name
        except ValueError:
            return f"signal {-self.returncode}"

    @property
    def exit_code(self) -> int:
        """The exit code as a shell reports it: 128 + signal for a rank that was killed."""
        return self.returncode if self.returncode >= 0 else 128 - self.returncode

    @property
    def is_follow_up(self) -> bool:
        """Whether the rank seems to have failed only because another one was gone."""
        return self.culprit is not None or any(map(_FOLLOW_UP.search, self.words))

    @property
    def words(self) -> tuple[str, ...]:
        """Lines of the rank's error report, or else the last lines of its stderr."""
        return self.stderr_tail if self.report is None else self.report.lines

    @property
    def culprit(self) -> int | None:
        """The rank of which its error says that its end was the cause; None if it names none."""
        for line in reversed(self.words):
            found = _NAMED.search(line)
            if found is not None:
                return int(found[1]) if int(found[1]) != self.rank else None
        return None


def first_failure(exits: Sequence[RankExit]) -> RankExit | None:
    """Picks the failure that most likely caused the others.

    A rank that exits with 0 has not failed. Ranks that complain of a lost peer come last. Among
    those that end within the same instant, one killed by a signal comes first, because its end is
    what the others can have reacted to.

    Args:
        exits: in the order in which they were reported.

    Returns:
        The first failure, or None if no rank failed.
    """
    failed = [rank_exit for rank_exit in exits if rank_exit.returncode != 0]
    if not failed:
        return None
    causes = [each for each in failed if not each.is_follow_up] or failed
    earliest_s = min(each.at_s for each in causes)
    together = [each for each in causes if each.at_s <= earliest_s + SAME_INSTANT_S]
    killed = [each for each in together if each.signal_name is not None]
    return min(killed or together, key=lambda each: each.at_s)


def headline(failure: RankExit) -> str:
    """One line that says which rank failed, where and how."""
    where = f"rank {failure.rank} on {failure.hostname}"
    if failure.start_error:
        return f"{where} could not be started: {failure.start_error}"
    if failure.ending:
        return f"{where} {failure.ending}"
    if failure.signal_name is None:
        return f"{where} exited with code {failure.exit_code}"
    hint = (
        "; was it out of memory? See the kernel's log (dmesg)"
        if failure.returncode == -signal.SIGKILL
        else ""
    )
    return f"{where} was killed by {failure.signal_name}{hint}"


def cause(failure: RankExit, running: Mapping[int, str] | None = None) -> str:
    """The headline, and who failed first if the rank names one whose process lives on.

    Args:
        failure: the first one.
        running: the hosts of the ranks that have not ended yet.
    """
    line = headline(failure)
    culprit = failure.culprit
    if running is not None and culprit is not None and culprit in running:
        line = (
            f"rank {culprit} on {running[culprit]} failed first, according to "
            f"rank {failure.rank}, but its process has not ended; {line}"
        )
    return line


def last_words(failure: RankExit) -> str:
    """Return why the rank failed, to follow :func:`cause`; empty if it said nothing.

    These are the last lines of its stderr or, if it printed nothing, what it reported.
    """
    tail = without_greetings(failure.stderr_tail)
    report = failure.report
    if not tail and report is not None:
        where = f" at {report.where}" if report.where else ""
        return f"; it raised {report.kind}{where}: {report.text}"
    if not tail:
        return ""
    lines = "".join(f"\n    {each}" for each in tail)
    return f"; the last lines of its stderr:{lines}"
