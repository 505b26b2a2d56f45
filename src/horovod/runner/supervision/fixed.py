"""What becomes of a job whose workers are fixed: the first failure ends it. Pure.

The states follow one another:

    Starting  until every agent said that it runs, and all hosts agree on the way to the store
    Running   until all workers ended, or one failed
    Settling  a worker failed; the others get a moment to fail by themselves and say why
    Stopping  the agents end their workers (SIGTERM or SIGINT, then SIGKILL)
    Killing   the agents were told to kill at once
    Over      no process of the job is left

All but Running and Over have a deadline.
"""

from __future__ import annotations

import signal
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from horovod.runner.protocol.frames import STOP_SOON, Stop
from horovod.runner.supervision.commands import (
    Abandon,
    Announce,
    ChooseEndpoint,
    EndAll,
    GiveUpHost,
    KillAll,
    ReportExit,
    ReportOutcome,
    UseHost,
)
from horovod.runner.supervision.early_exit import blame
from horovod.runner.supervision.events import (
    Deadline,
    EndAsked,
    HostFound,
    HostLost,
    HostReached,
    HostsGone,
    HostStopping,
    HostTried,
    KillAsked,
    Signal,
    WorkerExited,
    WorkerStarted,
)
from horovod.runner.supervision.failure import cause, first_failure, headline, last_words
from horovod.runner.supervision.history import History
from horovod.runner.supervision.outcome import Outcome, stopped_by
from horovod.runner.supervision.policy import Decision, State
from horovod.runner.supervision.readiness import Readiness
from horovod.runner.supervision.summary import summarize

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from horovod.runner.protocol.agent_job import AgentJob
    from horovod.runner.protocol.invitation import Endpoint
    from horovod.runner.supervision.commands import Command
    from horovod.runner.supervision.events import Event
    from horovod.runner.supervision.failure import RankExit

# From the first failure to the end of the job pass at most GRACE_S and the sum of these, less than
# 10 s.
SETTLE_S = 2.0
STOP_S = 1.0  # beyond the grace of the workers
KILL_S = 1.0


@dataclass(frozen=True)
class Placed:
    """Where a worker is, and under which rank its output appears."""

    rank: int
    hostname: str


def placed_in(jobs: Sequence[AgentJob]) -> dict[int, Placed]:
    """Return where the workers are with which hosts start, by number."""
    return {
        worker.worker: Placed(worker.rank, job.hostname) for job in jobs for worker in job.workers
    }


@dataclass(frozen=True)
class Progress(State):
    """What every state knows.

    Attributes:
        began_s: when the job began.
        any_started: whether a worker ever ran.
        exits: of the workers that ended by themselves, in this order.
    """

    began_s: float = 0.0
    any_started: bool = False
    exits: History[RankExit] = field(default_factory=History)


@dataclass(frozen=True)
class Starting(Progress):
    """Workers may run already, but not every host is ready.

    Attributes:
        readiness: what the hosts have reported.
        late: what the time for the start was, in words, once that is over.
    """

    readiness: Readiness = field(default_factory=lambda: Readiness(frozenset()))
    late: str = ""


@dataclass(frozen=True)
class Running(Progress):
    """All hosts are ready, no worker has failed."""


@dataclass(frozen=True)
class Settling(Progress):
    """A worker has failed."""


@dataclass(frozen=True)
class Stopping(Progress):
    """The workers were told to end.

    Attributes:
        verdict: as what the job ends.
        stopped: the ranks that have ended since.
        overdue: those of them that did not end in time.
    """

    verdict: Outcome = field(default_factory=lambda: Outcome(0))
    stopped: History[int] = field(default_factory=History)
    overdue: tuple[int, ...] = ()


@dataclass(frozen=True)
class Killing(Stopping):
    """The workers are being killed."""


@dataclass(frozen=True)
class Over(Progress):
    """No process of the job is left; ``outcome`` says how it ended."""


P = TypeVar("P", bound=Progress)


class FixedJob:
    """The policy of a job that fails with its first worker.

    Args:
        workers: all of the job, by number.
        start_timeout_s: until all hosts must be ready.
        grace_s: how long workers may take to end after a signal from outside.
        settle_s: how long the others may take after a failure to say why they fail, too.
        endpoints: those of the store, of which all hosts must reach one; empty if there is nothing
            to choose.
    """

    def __init__(
        self,
        workers: Mapping[int, Placed],
        start_timeout_s: float,
        grace_s: float,
        settle_s: float = SETTLE_S,
        endpoints: tuple[Endpoint, ...] = (),
    ) -> None:
        self._settle_s = settle_s
        self._endpoints = endpoints
        self._workers = workers
        self._start_timeout_s = start_timeout_s
        self._grace_s = grace_s

    def begin(self, at_s: float) -> Decision:
        """Return the state of a job that begins now."""
        numbers = Counter(worker.hostname for worker in self._workers.values())
        readiness = Readiness.of(tuple(numbers), self._endpoints)
        starting = Starting(at_s + self._start_timeout_s, began_s=at_s, readiness=readiness)
        return Decision(starting, [UseHost(host, number) for host, number in numbers.items()])

    def decide(self, state: State, event: Event) -> Decision:
        """What follows from an event."""
        assert isinstance(state, Progress)
        if isinstance(state, Over):
            return Decision(state)
        match event:
            case HostsGone():
                return self._over(state, event.at_s)
            case WorkerStarted():
                return Decision(state if state.any_started else replace(state, any_started=True))
            case WorkerExited():
                return self._on_exit(state, event)
            case Deadline():
                return self._on_deadline(state, event.at_s)
            case KillAsked():
                return self._kill(state, event.at_s)
        if isinstance(state, Stopping):
            return self._hurry(state, event) if isinstance(event, Signal) else Decision(state)
        match event:
            case Signal():
                return self._stop(state, event.at_s, stopped_by(event.signum))
            case EndAsked():
                return self._stop(state, event.at_s, event.outcome)
        if isinstance(state, Starting):
            return self._on_start(state, event)
        match event:
            case HostStopping():
                message = f"the agent of {event.host} ends its ranks: {event.reason}"
                outcome = Outcome(1, message, stop_signal=event.signum)
                return self._stop(state, event.at_s, outcome)
            case HostLost():
                return self._on_lost(state, event)
        return Decision(state)

    # -- what happens

    def _on_start(self, state: Starting, event: Event) -> Decision:
        """Take in what hosts report until all are ready, or all that fail have said why."""
        readiness, reason = state.readiness, ""
        match event:
            case HostFound():
                readiness = readiness.find(event.host)
            case HostReached():
                readiness = readiness.reach(event.host, event.endpoint)
            case HostTried():
                readiness = readiness.give_up(event.host)
            case HostLost() | HostStopping():
                readiness = readiness.fail(event.host, event.reason)
                reason = f"{event.host}: {event.reason}"
        state = replace(state, readiness=readiness)
        if failure := readiness.failure(state.late):
            return self._stop(state, event.at_s, Outcome(1, failure))
        if not readiness.is_complete:
            return Decision(state, reason=reason)
        choice = readiness.choice
        chosen = [] if choice is None else [ChooseEndpoint(choice)]
        return Decision(_become(Running, state, None), chosen, "all hosts are ready")

    def _on_late_start(self, state: Starting, at_s: float) -> Decision:
        """Name all hosts that are missing, with what they wrote."""
        late = f"within {self._start_timeout_s:g} s; raise --start-timeout if it needs longer"
        if failure := state.readiness.failure(late):
            return self._stop(state, at_s, Outcome(1, failure))
        reason = f"no agent came up there {late}"
        missing = [GiveUpHost(host, reason) for host in sorted(state.readiness.missing)]
        return Decision(replace(state, deadline_at=None, late=late), missing)

    def _on_lost(self, state: Progress, event: HostLost) -> Decision:
        lost = Outcome(1, f"the agent of {event.host} is gone: {event.reason}")
        known = self._verdict(state)
        # That ranks elsewhere complain of lost peers only tells the same from another side.
        follows = known is None or known.is_follow_up
        return self._stop(state, event.at_s, lost if known is None or follows else known)

    def _on_exit(self, state: Progress, event: WorkerExited) -> Decision:
        ended = event.ended
        if isinstance(state, Stopping):  # it ended because it was told to
            late = type(state) is Stopping and ended.returncode == -signal.SIGKILL
            overdue = (*state.overdue, ended.rank) if late else state.overdue
            return Decision(replace(state, stopped=state.stopped.then(ended.rank), overdue=overdue))
        state = replace(state, exits=state.exits.then(ended))
        reason = ""
        if ended.returncode != 0 and not isinstance(state, Settling):
            reason = f"{headline(ended)}: the other ranks have {self._settle_s:g} s to say why"
            state = _become(Settling, state, event.at_s + self._settle_s)
        report = ReportExit(ended)
        all_ended = len(state.exits) >= len(self._workers)
        if isinstance(state, Settling) and (ended.start_error or all_ended):
            stop = self._stop(state, event.at_s, self._verdict(state) or Outcome(0))
            return replace(stop, commands=[report, *stop.commands])
        return Decision(state, [report], reason)

    def _on_deadline(self, state: Progress, at_s: float) -> Decision:
        match state:
            case Killing():
                return Decision(replace(state, deadline_at=None), [Abandon()], "nobody answers")
            case Stopping():
                return self._kill(state, at_s)
            case Settling():
                return self._stop(state, at_s, self._verdict(state) or Outcome(0))
            case Starting():
                return self._on_late_start(state, at_s)
        return Decision(state)

    def _hurry(self, state: Stopping, event: Signal) -> Decision:
        name = signal.Signals(event.signum).name
        if event.signum != signal.SIGINT and state.verdict.stop_signal:
            # Systems may send it more than once.
            return Decision(state, reason=f"{name}: the ranks are ending already")
        return replace(self._kill(state, event.at_s), reason=f"{name} again: killing the ranks")

    # -- the end

    def _stop(self, state: Progress, at_s: float, outcome: Outcome) -> Decision:
        """Ends the job; the first outcome counts."""
        commands: list[Command] = []
        running = self._running(state)
        if outcome.failure is not None and not outcome.failure.start_error and running:
            commands.append(Announce(f"{headline(outcome.failure)}; stopping {named(running)}"))
        how = STOP_SOON
        if outcome.stop_signal:
            how = Stop(outcome.stop_signal, self._grace_s)
            if outcome.stop_signal == signal.SIGINT and running:
                line = f"the ranks have {self._grace_s:g} s to end; Ctrl-C again ends them at once"
                commands.append(Announce(line))
        commands += [EndAll(how), ReportOutcome(outcome)]
        deadline_at = at_s + how.grace_s + STOP_S
        stopping = _become(Stopping, state, deadline_at, verdict=outcome)
        return Decision(stopping, commands, "stopping the ranks")

    def _kill(self, state: Progress, at_s: float) -> Decision:
        if isinstance(state, Killing):
            return Decision(state)
        known = {"verdict": self._verdict(state) or Outcome(1)}
        if isinstance(state, Stopping):
            names = ("verdict", "stopped", "overdue")
            known = {name: getattr(state, name) for name in names}
        killing = _become(Killing, state, at_s + KILL_S, **known)
        return Decision(killing, [KillAll()], "killing the ranks")

    def _over(self, state: Progress, at_s: float) -> Decision:
        verdict = state.verdict if isinstance(state, Stopping) else self._verdict(state)
        outcome = self._with_summary(state, verdict or Outcome(0), at_s - state.began_s)
        return Decision(_become(Over, state, None, outcome=outcome))

    def _with_summary(self, state: Progress, outcome: Outcome, elapsed_s: float) -> Outcome:
        stopped = state.stopped if isinstance(state, Stopping) else ()
        overdue = state.overdue if isinstance(state, Stopping) else ()
        # So that the user may give it more time.
        if outcome.stop_signal and outcome.message and overdue:
            were = "were" if len(overdue) > 1 else "was"
            told = f"{named(overdue)} did not end within {self._grace_s:g} s (--grace)"
            outcome = replace(outcome, message=f"{outcome.message}; {told} and {were} killed")
        failed_start = outcome.failure is not None and bool(outcome.failure.start_error)
        nobody_reads = outcome.exit_code == 0 or not outcome.message
        if nobody_reads or failed_start or not state.any_started:
            return outcome
        lost = self._running(state).keys() - set(stopped)
        told = summarize(outcome.failure, state.exits, stopped, lost, elapsed_s)
        return replace(outcome, summary=told)

    def _running(self, state: Progress) -> dict[int, str]:
        """The ranks that have not ended by themselves, with their hosts."""
        ended = {each.rank for each in state.exits}
        return {
            each.rank: each.hostname for each in self._workers.values() if each.rank not in ended
        }

    def _verdict(self, state: Progress) -> Outcome | None:
        """How the job ends as far as its workers have failed; None if none has."""
        failure = first_failure(state.exits)
        if failure is None:
            return None
        if message := blame(state.exits):
            return Outcome(failure.exit_code, message, failure)
        message, details = cause(failure, self._running(state)), last_words(failure)
        if early := self._ended_early(state, failure):
            message = f"{early}; {message}"
        return Outcome(failure.exit_code, message, failure, details=details)

    def _ended_early(self, state: Progress, failure: RankExit) -> str:
        """Who ended well before those that fail because of it; empty if nobody did."""
        for each in state.exits:
            if each.returncode == 0 and each.rank == failure.culprit:
                follow = {one.rank for one in state.exits if one.returncode and one.is_follow_up}
                middle = named(follow | self._running(state).keys())
                return f"{headline(each)} while {middle} still needed it"
        return ""


def _become(kind: type[P], state: Progress, deadline_at: float | None, **more: Any) -> P:
    """The next state, which knows what this one knew."""
    common = {"began_s": state.began_s, "any_started": state.any_started, "exits": state.exits}
    return kind(deadline_at=deadline_at, **{**common, **more})


def named(ranks: Collection[int]) -> str:
    """Such as "rank 3", "ranks 0, 2" or "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 4 more"."""
    names = ", ".join(map(str, sorted(ranks)[:8]))
    more = f" and {len(ranks) - 8} more" if len(ranks) > 8 else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {names}{more}"
