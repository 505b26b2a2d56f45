"""Decides the course of a job whose workers are fixed: the first failure ends it. Pure.

The states follow one another:

    Starting  until every agent said that it runs, and all hosts agree on the way to the store
    Running   until all workers ended, or one failed
    Settling  a worker failed; the others get a moment to fail by themselves and say why

Then come those of :mod:`horovod.runner.supervision.stopping`. All but Running and Over have a
deadline.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from horovod._base.fast_dataclass import dataclass
from horovod.runner.supervision import commands, events
from horovod.runner.supervision.early_exit import blame
from horovod.runner.supervision.failure import cause, first_failure, headline, last_words
from horovod.runner.supervision.outcome import Outcome, stopped_by
from horovod.runner.supervision.policy import Decision, State
from horovod.runner.supervision.readiness import Readiness
from horovod.runner.supervision.stopping import Ending, Over, Stopping
from horovod.runner.supervision.summary import summarize

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from horovod.runner.protocol.agent_job import AgentJob
    from horovod.runner.protocol.invitation import Endpoint
    from horovod.runner.supervision.commands import Command
    from horovod.runner.supervision.events import Event
    from horovod.runner.supervision.failure import RankExit

SETTLE_S = 2.0


@dataclass(frozen=True)
class Placed:
    """Host of a worker, and the rank under which its output appears."""

    rank: int
    hostname: str


def placed_workers(jobs: Sequence[AgentJob]) -> dict[int, Placed]:
    """Return where the workers are with which hosts start, by number."""
    return {
        worker.worker: Placed(worker.rank, job.hostname) for job in jobs for worker in job.workers
    }


@dataclass(frozen=True)
class Progress:
    """Facts that are known in every state.

    Attributes:
        began_at: when the job began.
        any_started: whether a worker ever ran.
        exits: of the workers that ended by themselves, in this order.
    """

    began_at: float
    any_started: bool = False
    exits: tuple[RankExit, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Going(State):
    """Nothing has ended the job."""

    progress: Progress


@dataclass(frozen=True, kw_only=True)
class Starting(Going):
    """Workers may run already, but not every host is ready.

    Attributes:
        readiness: what the hosts have reported.
        late: what the time for the start was, in words, once that is over.
    """

    readiness: Readiness
    late: str = ""


@dataclass(frozen=True, kw_only=True)
class Running(Going):
    """All hosts are ready, no worker has failed."""


@dataclass(frozen=True, kw_only=True)
class Settling(Going):
    """A worker has failed."""


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
        self._workers = workers
        self._start_timeout_s = start_timeout_s
        self._ending = Ending("ranks", grace_s)
        self._settle_s = settle_s
        self._endpoints = endpoints

    def begin(self, at_s: float) -> Decision:
        """Return the state of a job that begins now."""
        numbers = Counter(worker.hostname for worker in self._workers.values())
        starting = Starting(
            deadline_at=at_s + self._start_timeout_s,
            progress=Progress(at_s),
            readiness=Readiness.of(tuple(numbers), self._endpoints),
        )
        return Decision(
            starting, [commands.UseHost(host, number) for host, number in numbers.items()]
        )

    def decide(self, state: State, event: Event) -> Decision:
        """Return what follows from an event."""
        match state:
            case Going() if isinstance(event, events.HostsGone):
                verdict = self._verdict(state.progress) or Outcome(0)
                return self._over(state.progress, verdict, event.at_s)
            case Starting() if isinstance(event, events.HostEvent):
                return self._on_start(state, event)
            case Going():
                return self._on_event(state, event)
            case Stopping(known=Progress()):
                return self._on_end(state, event)
        return Decision(state)

    def _on_event(self, state: Going, event: Event) -> Decision:
        at_s, progress = event.at_s, state.progress
        match event:
            case events.WorkerStarted() if not progress.any_started:
                progress = replace(progress, any_started=True)
                return Decision(replace(state, progress=progress))
            case events.WorkerExited():
                return self._on_exit(state, event)
            case events.Deadline():
                return self._on_deadline(state, at_s)
            case events.KillAsked():
                verdict = self._verdict(progress) or Outcome(1)
                return self._ending.kill(at_s, Stopping(known=progress, verdict=verdict))
            case events.Signal():
                return self._stop(progress, at_s, stopped_by(event.signum))
            case events.EndAsked():
                return self._stop(progress, at_s, event.outcome)
            case events.HostStopping():
                message = f"the agent of {event.host} ends its ranks: {event.reason}"
                outcome = Outcome(1, message, stop_signal=event.signum)
                return self._stop(progress, at_s, outcome)
            case events.HostLost():
                return self._on_lost(progress, event)
        return Decision(state)

    # -- what happens

    def _on_start(self, state: Starting, event: events.HostEvent) -> Decision:
        """Take in what hosts report until all are ready, or all that fail have said why."""
        readiness, reason = state.readiness, ""
        match event:
            case events.HostFound():
                readiness = readiness.find(event.host)
            case events.HostReached():
                readiness = readiness.reach(event.host, event.endpoint)
            case events.HostTried():
                readiness = readiness.give_up(event.host)
            case events.HostLost() | events.HostStopping():
                readiness = readiness.fail(event.host, event.reason)
                reason = f"{event.host}: {event.reason}"
        if failure := readiness.failure(state.late):
            return self._stop(state.progress, event.at_s, Outcome(1, failure))
        if not readiness.is_complete:
            return Decision(replace(state, readiness=readiness), (), reason)
        choice = readiness.choice
        chosen = [] if choice is None else [commands.ChooseEndpoint(choice)]
        return Decision(Running(progress=state.progress), chosen, "all hosts are ready")

    def _on_late_start(self, state: Starting, at_s: float) -> Decision:
        """Name all hosts that are missing, with what they wrote."""
        late = f"within {self._start_timeout_s:g} s; raise --start-timeout if it needs longer"
        if failure := state.readiness.failure(late):
            return self._stop(state.progress, at_s, Outcome(1, failure))
        reason = f"no agent started there {late}"
        missing = [commands.GiveUpHost(host, reason) for host in sorted(state.readiness.missing)]
        return Decision(replace(state, deadline_at=None, late=late), missing)

    def _on_lost(self, progress: Progress, event: events.HostLost) -> Decision:
        lost = Outcome(1, f"the agent of {event.host} is gone: {event.reason}")
        known = self._verdict(progress)
        # That ranks elsewhere complain of lost peers only tells the same from another side.
        follows = known is None or known.is_follow_up
        return self._stop(progress, event.at_s, lost if known is None or follows else known)

    def _on_exit(self, state: Going, event: events.WorkerExited) -> Decision:
        at_s, ended, report = event.at_s, event.ended, commands.ReportExit(event.ended)
        progress = replace(state.progress, exits=(*state.progress.exits, ended))
        fails = ended.returncode != 0 or isinstance(state, Settling)
        all_ended = len(progress.exits) >= len(self._workers)
        if fails and (ended.start_error or all_ended):
            return self._stop(progress, at_s, self._verdict(progress) or Outcome(0), report)
        if not fails or isinstance(state, Settling):
            return Decision(replace(state, progress=progress), [report])
        settling = Settling(deadline_at=at_s + self._settle_s, progress=progress)
        reason = f"{headline(ended)}: the other ranks have {self._settle_s:g} s to report why"
        return Decision(settling, [report], reason)

    def _on_deadline(self, state: Going, at_s: float) -> Decision:
        match state:
            case Settling():
                verdict = self._verdict(state.progress) or Outcome(0)
                return self._stop(state.progress, at_s, verdict)
            case Starting():
                return self._on_late_start(state, at_s)
        return Decision(state)

    # -- the end

    def _stop(
        self, progress: Progress, at_s: float, verdict: Outcome, *before: Command
    ) -> Decision:
        """End the job; the first verdict counts."""
        running = self._running(progress)
        names = named(running) if running else ""
        return self._ending.stop(at_s, progress, verdict, names, before)

    def _on_end(self, state: Stopping[Progress], event: Event) -> Decision:
        match event:
            case events.HostsGone():
                return self._over(state.known, state.verdict, event.at_s, state)
            case events.WorkerStarted():
                return Decision(replace(state, known=replace(state.known, any_started=True)))
        return self._ending.go_on(state, event)

    def _over(
        self,
        progress: Progress,
        outcome: Outcome,
        at_s: float,
        stopping: Stopping[Progress] | None = None,
    ) -> Decision:
        """Say what became of all ranks."""
        ended = [] if stopping is None else self._ranks(stopping.ended)
        overdue = [] if stopping is None else self._ranks(stopping.overdue)
        outcome = self._ending.name_overdue(outcome, overdue, named(overdue))
        failed_start = outcome.failure is not None and bool(outcome.failure.start_error)
        nobody_reads = outcome.exit_code == 0 or not outcome.message
        if not (nobody_reads or failed_start) and progress.any_started:
            lost = self._running(progress).keys() - set(ended)
            elapsed_s = at_s - progress.began_at
            summary = summarize(outcome.failure, progress.exits, ended, lost, elapsed_s)
            outcome = replace(outcome, summary=summary)
        return Decision(Over(None, outcome))

    def _ranks(self, workers: Iterable[int]) -> list[int]:
        return [self._workers[worker].rank for worker in workers]

    def _running(self, progress: Progress) -> dict[int, str]:
        """The ranks that have not ended by themselves, with their hosts."""
        ended = {rank_exit.rank for rank_exit in progress.exits}
        return {
            worker.rank: worker.hostname
            for worker in self._workers.values()
            if worker.rank not in ended
        }

    def _verdict(self, progress: Progress) -> Outcome | None:
        """Return the outcome of the job after its workers' failures; None if none has failed."""
        failure = first_failure(progress.exits)
        if failure is None:
            return None
        if message := blame(progress.exits):
            return Outcome(failure.exit_code, message, failure)
        message, details = cause(failure, self._running(progress)), last_words(failure)
        if early := self._ended_early(progress, failure):
            message = f"{early}; {message}"
        return Outcome(failure.exit_code, message, failure, details=details)

    def _ended_early(self, progress: Progress, failure: RankExit) -> str:
        """Return which rank exited with 0 while others still needed it, in words; empty if none."""
        exits = progress.exits
        for ended in exits:
            if ended.returncode == 0 and ended.rank == failure.culprit:
                follow = {
                    rank_exit.rank
                    for rank_exit in exits
                    if rank_exit.returncode and rank_exit.is_follow_up
                }
                middle = named(follow | self._running(progress).keys())
                return f"{headline(ended)} while {middle} still needed it"
        return ""


def named(ranks: Collection[int]) -> str:
    """Return names such as "rank 3", "ranks 0, 2" or "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 4 more"."""
    names = ", ".join(map(str, sorted(ranks)[:8]))
    more = f" and {len(ranks) - 8} more" if len(ranks) > 8 else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {names}{more}"
