"""Decides the course of a job whose hosts and workers come and go. Pure.

Each event changes what is known. Then the same questions are asked of all that is known, until
their answers change nothing more: so no event can be missed, and none has to come at a certain
time. What is only a matter of time has a deadline.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from horovod.runner.supervision import events
from horovod.runner.supervision.commands import Announce
from horovod.runner.supervision.elastic import (
    endings,
    news,
    removals,
    reports,
    slowness,
    starting,
)
from horovod.runner.supervision.elastic.generations import next_generation, publish
from horovod.runner.supervision.elastic.states import Facts, Going, Job, state_of
from horovod.runner.supervision.elastic.turn import Turn
from horovod.runner.supervision.elastic.worker_records import hurry_dismissed
from horovod.runner.supervision.outcome import Outcome, stopped_by
from horovod.runner.supervision.policy import Decision, State
from horovod.runner.supervision.stopping import Ending, Over, Stopping

if TYPE_CHECKING:
    from horovod.runner.supervision.elastic.rules import Rules
    from horovod.runner.supervision.events import Event

# When a generation is taken to run, if workers do not say so.
ASSUMED_S = 10.0
# More often than this, nothing follows from an answer.
_MOST_PASSES = 20


class ElasticJob:
    """The policy of an elastic job.

    Args:
        rules: what the user asked for.
    """

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._ending = Ending("workers", rules.grace_s)

    def begin(self, at_s: float) -> Decision:
        """Return the state of a job that begins now."""
        return Decision(state_of(Facts(Job(at_s)), at_s + self._rules.gate_timeout_s))

    def decide(self, state: State, event: Event) -> Decision:
        """Return the decision that follows from an event."""
        if isinstance(state, Stopping):
            return self._on_end(state, event)
        if not isinstance(state, Going):
            return Decision(state)
        turn = Turn(self._rules, state.facts, event.at_s)
        match event:
            case events.HostsGone():
                lost = Stopping(known=state.facts, verdict=Outcome(1, "no host of the job is left"))
                return self._on_end(lost, event)
            case events.KillAsked():
                killed = Stopping(known=state.facts, verdict=Outcome(1))
                return self._ending.kill(event.at_s, killed)
            case events.Signal():
                turn.stop(stopped_by(event.signum))
            case events.EndAsked():
                turn.stop(event.outcome)
            case _:
                news.take(turn, event)
                self._conclude(turn)
        if turn.verdict is not None:
            return self._stop(turn, turn.verdict)
        deadline_at = None if turn.wake_at == float("inf") else turn.wake_at
        return Decision(state_of(turn.facts, deadline_at), turn.commands, turn.why())

    def _stop(self, turn: Turn, verdict: Outcome) -> Decision:
        """End the job, with what was decided before in the same turn."""
        facts = turn.facts
        if verdict.exit_code == 0 and (facts.num_changes or facts.job.num_failures):
            turn.commands.append(Announce(reports.summary(facts, turn.at_s)))
        names = reports.listed([process.identity for process in facts.processes.values()])
        stop = self._ending.stop(turn.at_s, facts, verdict, names, turn.commands)
        return replace(stop, reason=turn.why(stop.reason))

    def _on_end(self, state: Stopping[Facts], event: Event) -> Decision:
        if not isinstance(event, events.HostsGone):
            return self._ending.go_on(state, event)
        facts, outcome = state.known, state.verdict
        late = [facts.processes[each] for each in state.overdue if each in facts.processes]
        overdue = [process.identity for process in late]
        outcome = self._ending.name_overdue(outcome, overdue, reports.listed(overdue))
        if outcome.exit_code and outcome.message and facts.job.any_started:
            outcome = replace(outcome, summary=reports.summary(facts, event.at_s))
        return Decision(Over(None, outcome))

    def _conclude(self, turn: Turn) -> None:
        """Ask what is to be done, until the answers change nothing more."""
        awaits = ""
        for _ in range(_MOST_PASSES):
            turn.wake_at = float("inf")
            before = len(turn.commands)
            awaits = self._ask(turn)
            if turn.verdict is not None or len(turn.commands) == before:
                break
        if awaits != turn.facts.job.awaits:
            turn.facts.job.awaits = awaits
            turn.reasons.append(awaits)

    def _ask(self, turn: Turn) -> str:
        """Ask once; return why the next generation is due, or not."""
        assume_running(turn)
        endings.resume(turn)
        removals.end_absent_members(turn)
        removals.end_neighbors(turn)
        removals.send_away_unwanted_newcomers(turn)
        removals.note_removals(turn)
        slowness.keep_if_nobody_comes(turn)
        starting.start_workers(turn)
        endings.check_end(turn)
        if turn.verdict is not None:
            return "the job ends"
        plan = next_generation(turn)
        if plan.members:
            publish(turn, plan.members)
        endings.check_shortage(turn, plan)
        removals.end_overdue(turn)
        starting.release_hosts(turn)
        return plan.reason


def assume_running(turn: Turn) -> None:
    """Workers that never say when they run are taken to, after a while."""
    facts, generation, job = turn.facts, turn.facts.generation, turn.facts.job
    if facts.start is not None or facts.loss is not None or job.hears_running or generation.runs:
        return
    if turn.is_due(generation.published_at + ASSUMED_S):
        for process in facts.alive():
            turn.note(replace(process, ran=generation.number, entered=generation.number))
        generation.runs = generation.is_entered = job.has_trained = True
        hurry_dismissed(turn)
