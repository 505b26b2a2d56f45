"""Describes the outcome of a job."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from horovod._base.fast_dataclass import dataclass

if TYPE_CHECKING:
    from horovod.runner.supervision.failure import RankExit


FILES_INCOMPLETE = "the output files are incomplete: "
"""What the launcher says in front of :attr:`Outcome.files_error`."""


@dataclass(frozen=True)
class Outcome:
    """Outcome of a job.

    Attributes:
        exit_code: for the launcher: 0, that of the first failure, or 128 + signal.
        message: what to tell the user; empty if all went well.
        details: the last lines of the rank that failed first, to follow the message.
        details_are_above: whether the console shows them a few lines further up.
        left_running: what the ranks left in the background, which was ended; empty for nothing.
        files_error: why the files of the ranks' output are not complete; empty if they are.
        failure: the rank that failed first, if it was a rank.
        summary: one line on what became of all ranks; empty if all went well.
        stop_signal: what the ranks got from the user or the system, who let them have their time;
            0 if it was not one of these that ended the job.
    """

    exit_code: int
    message: str = ""
    failure: RankExit | None = None
    summary: str = ""
    stop_signal: int = 0
    details: str = ""
    details_are_above: bool = False
    files_error: str = ""
    left_running: str = ""

    @property
    def report(self) -> str:
        """The message and its details."""
        return self.message + self.details

    @property
    def is_follow_up(self) -> bool:
        """Whether a rank failed that complains of another one."""
        return self.failure is not None and self.failure.is_follow_up


def stopped_by(signum: int) -> Outcome:
    """Return the outcome if the launcher gets a signal. Only SIGINT is passed on as Ctrl-C."""
    passed_on = signal.SIGINT if signum == signal.SIGINT else signal.SIGTERM
    name = signal.Signals(signum).name
    return Outcome(128 + signum, f"stopped by {name}", stop_signal=passed_on)
