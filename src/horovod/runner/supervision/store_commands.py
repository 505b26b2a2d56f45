"""Commands that tell workers something through the store of the job."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING

from horovod._rank.reports.end import end_key
from horovod.errors import StartError
from horovod.runner.supervision import commands
from horovod.runner.supervision.events import EndAsked
from horovod.runner.supervision.outcome import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from horovod._job.job import Job
    from horovod._job.membership import Membership
    from horovod.runner.supervision.commands import Command
    from horovod.runner.supervision.events import Event


class StoreCommands:
    """Writes into the store what workers have to know; a part of every executor.

    Args:
        job: the job whose store it is.
        published: called with each generation that is in the store.
    """

    def __init__(self, job: Job, published: Callable[[Membership], None]) -> None:
        self._job = job
        self._published = published

    def forget(self, worker: int, identity: str) -> None:
        """Delete what only a process that has ended, or a reader of its report, could need."""
        with suppress(StartError):  # the store was closed, and all of it is gone
            self._job.forget(identity)
            self._job.store.delete(end_key(worker))

    def execute(self, command: Command, report: Callable[[Event], None]) -> None:
        """Carry out a command if it is for the store; a store that fails ends the job."""
        try:
            match command:
                case commands.Publish():
                    self._job.publish(command.membership)
                    self._published(command.membership)
                case commands.BreakUp():
                    self._job.break_up(command.text)
                case commands.TellLoss():
                    self._job.tell_loss(command.generation, command.text)
                case commands.Dismiss():
                    self._job.dismiss(command.identity, command.text)
        except StartError as error:
            outcome = Outcome(1, f"the store of the job failed: {error}")
            report(EndAsked(time.monotonic(), outcome))
