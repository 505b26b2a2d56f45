"""Relays the output of ranks to the console and to files; neither of them delays the loop."""

from __future__ import annotations

import signal
from dataclasses import replace
from typing import TYPE_CHECKING

from horovod.runner.output.console import PATIENCE_S, SHORT_PATIENCE_S
from horovod.runner.supervision.outcome import FILES_INCOMPLETE, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from horovod.runner.output.output import Output
    from horovod.runner.supervision.link import AgentLink

# What came so few lines ago can still be seen, and is not printed once more.
SCREEN_LINES = 30


class Relay:
    """Hands output on, and lets agents send more as it is taken.

    Args:
        output: takes what the ranks print.
        announce: takes one line for the user.
        end: ends the job, as the console takes nothing more.

    Attributes:
        output: as above.
        num_dropped: how many bytes of output were lost.
    """

    def __init__(
        self,
        output: Output,
        announce: Callable[[str], object],
        end: Callable[[Outcome], object],
    ) -> None:
        self.output = output
        self.num_dropped = 0
        self._announce = announce
        self._end = end
        self._is_silent = False
        self._disk_error = ""

    def write(self, link: AgentLink, worker: int, stream: str, data: bytes) -> None:
        """Hand on what a worker printed. An agent that hears nothing lets its ranks wait."""
        self.output.write(worker, stream, data)
        if link.owe(len(data)) and self.output.has_room():
            link.acknowledge()

    def on_console_news(self, links: Iterable[AgentLink]) -> None:
        """Look what became of earlier output: the console has taken it, or failed."""
        self.output.console.take_news()
        self._look_for_write_errors()
        if self.output.has_room():
            for link in links:
                link.acknowledge()

    def _look_for_write_errors(self) -> None:
        """A console that takes nothing more ends the job; a disk that is full only its files."""
        error = self.output.console.error()
        if error is not None and not self._is_silent:
            self._is_silent = True
            self._end(_console_failed(error))
        error = self.output.file_error()
        if error is not None:
            self._disk_error = f"cannot write {error.filename}: {error.strerror or error}"
            self.output.give_up_files()
            self._announce(f"{self._disk_error}; nothing more is written to such files")

    def finish(self, outcome: Outcome, interrupts: int | None) -> Outcome:
        """Hand over the last lines, and wait for the console as long as it takes anything."""
        self.output.finish()
        patience_s = PATIENCE_S if outcome == Outcome(0) else SHORT_PATIENCE_S
        console = self.output.console
        if not self._is_silent and not console.wait(patience_s, interrupts):
            self.num_dropped += console.give_up()
        error = None if self._is_silent else console.error()
        if error is not None and outcome.exit_code == 0:
            outcome = _console_failed(error)
        self._is_silent = self._is_silent or error is not None
        self._look_for_write_errors()
        if self.num_dropped and not self._is_silent:
            self._announce(f"{self.num_dropped} bytes of output are lost: nobody read them")
        if self._disk_error:
            self._announce(f"{FILES_INCOMPLETE}{self._disk_error}")
        return replace(
            outcome, files_error=self._disk_error, details_are_above=self._shows(outcome)
        )

    def _shows(self, outcome: Outcome) -> bool:
        """Return whether the user can still see the last lines of the rank that failed first."""
        failure = outcome.failure
        if failure is None or not outcome.summary or not failure.stderr_tail or self.num_dropped:
            return False
        return self.output.lines_since(failure.worker) <= SCREEN_LINES


def _console_failed(error: OSError) -> Outcome:
    if isinstance(error, BrokenPipeError):
        return Outcome(128 + signal.SIGPIPE)
    return Outcome(1, f"cannot write the output of the ranks: {error.strerror or error}")
