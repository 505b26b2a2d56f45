"""The end of any job: its workers are told to end, then killed, then no longer awaited. Pure.

    Stopping  the workers have got a signal, and their time
    Killing   the agents were told to kill at once
    Over      no process of the job is left

Stopping and Killing have a deadline.
"""

from __future__ import annotations

import signal
from dataclasses import replace
from typing import TYPE_CHECKING, Generic, TypeVar

from horovod._base.fast_dataclass import dataclass
from horovod.runner.protocol.frames import STOP_SOON, Stop
from horovod.runner.supervision import events
from horovod.runner.supervision.commands import Abandon, Announce, EndAll, KillAll, ReportOutcome
from horovod.runner.supervision.failure import headline
from horovod.runner.supervision.policy import Decision, State

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horovod.runner.supervision.commands import Command
    from horovod.runner.supervision.events import Event
    from horovod.runner.supervision.outcome import Outcome

# From the first failure to the end of a job pass at most the time in which others may fail, GRACE_S
# and the sum of these, less than 10 s.
STOP_S = 1.0  # beyond the grace of the workers
KILL_S = 1.0

K = TypeVar("K")


@dataclass(frozen=True, kw_only=True)
class Stopping(State, Generic[K]):
    """The workers were told to end.

    Attributes:
        known: what the policy knew then, to say what became of the job.
        verdict: as what the job ends.
        ended: the numbers of the workers that have ended since.
        overdue: those of them that did not end in time.
    """

    known: K
    verdict: Outcome
    ended: tuple[int, ...] = ()
    overdue: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Killing(Stopping[K]):
    """The workers are being killed."""


@dataclass(frozen=True)
class Over(State):
    """No process of the job is left; ``outcome`` says how it ended."""


@dataclass(frozen=True)
class Ending:
    """Rules for ending the workers of a job.

    Attributes:
        noun: what the user calls them: "ranks" or "workers".
        grace_s: how long they may take after a signal from outside.
    """

    noun: str
    grace_s: float

    def stop(
        self,
        at_s: float,
        known: K,
        verdict: Outcome,
        running: str,
        before: Sequence[Command] = (),
    ) -> Decision:
        """Tell the workers to end.

        Args:
            at_s: now.
            known: what the policy knows.
            verdict: as what the job ends.
            running: names the workers that run; empty for none.
            before: commands that come first.
        """
        commands = [*before]
        failure, how = verdict.failure, STOP_SOON
        if running and failure is not None and not failure.start_error and failure.rank >= 0:
            commands.append(Announce(f"{headline(failure)}; stopping {running}"))
        if verdict.stop_signal:
            how = Stop(verdict.stop_signal, self.grace_s)
        if verdict.stop_signal == signal.SIGINT and running:
            limit = f"the {self.noun} have {self.grace_s:g} s to end"
            commands.append(Announce(f"{limit}; Ctrl-C again ends them at once"))
        commands += [EndAll(how), ReportOutcome(verdict)]
        deadline_at = at_s + how.grace_s + STOP_S
        stopping = Stopping(deadline_at=deadline_at, known=known, verdict=verdict)
        return Decision(stopping, commands, f"stopping the {self.noun}")

    def kill(self, at_s: float, state: Stopping[K], why: str = "") -> Decision:
        """Kill the workers, unless that is under way."""
        if isinstance(state, Killing):
            return Decision(state)
        killing = Killing(
            deadline_at=at_s + KILL_S,
            known=state.known,
            verdict=state.verdict,
            ended=state.ended,
            overdue=state.overdue,
        )
        return Decision(killing, [KillAll()], f"{why}killing the {self.noun}")

    def go_on(self, state: Stopping[K], event: Event) -> Decision:
        """Return what follows from an event while the workers end."""
        match event:
            case events.Deadline() if isinstance(state, Killing):
                return Decision(replace(state, deadline_at=None), [Abandon()], "nobody answers")
            case events.Deadline() | events.KillAsked():
                return self.kill(event.at_s, state)
            case events.Signal():
                name = signal.Signals(event.signum).name
                if event.signum != signal.SIGINT and state.verdict.stop_signal:
                    # Systems may send it more than once.
                    return Decision(state, (), f"{name}: the {self.noun} are ending already")
                return self.kill(event.at_s, state, f"{name} again: ")
            case events.WorkerExited():
                killed = event.ended.returncode == -signal.SIGKILL
                is_late = killed and not isinstance(state, Killing)
                overdue = (*state.overdue, event.worker) if is_late else state.overdue
                return Decision(replace(state, ended=(*state.ended, event.worker), overdue=overdue))
        return Decision(state)

    def name_overdue(self, outcome: Outcome, overdue: Sequence[object], names: str) -> Outcome:
        """Say who did not end in time, so that the user may give it more."""
        if not (outcome.stop_signal and outcome.message and overdue):
            return outcome
        were = "were" if len(overdue) > 1 else "was"
        late = f"{names} did not end within {self.grace_s:g} s (--grace) and {were} killed"
        return replace(outcome, message=f"{outcome.message}; {late}")
