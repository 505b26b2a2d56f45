"""What becomes of a job whose hosts and workers come and go. Pure.

Each event changes what is known. Then the same questions are asked of all that is known, until
their answers change nothing more: so no event can be missed, and none has to come at a certain
time. What is only a matter of time has a deadline.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from horovod._job.membership import assign_places
from horovod.runner.supervision import events
from horovod.runner.supervision.elastic import (
    endings,
    finishes,
    news,
    plan,
    removals,
    reports,
    slowness,
    starting,
)
from horovod.runner.supervision.elastic.events import Publish
from horovod.runner.supervision.elastic.facts import Facts
from horovod.runner.supervision.elastic.processes import FOREVER_S
from horovod.runner.supervision.elastic.stopping import Over, Stopping, on_event, over, stop
from horovod.runner.supervision.elastic.turn import Turn
from horovod.runner.supervision.events import Decision, State
from horovod.runner.supervision.history import History
from horovod.runner.supervision.outcome import Outcome, stopped_by

if TYPE_CHECKING:
    from horovod.runner.supervision.elastic.processes import Process
    from horovod.runner.supervision.elastic.rules import Rules
    from horovod.runner.supervision.events import Event

# When a generation is taken to run, if workers do not say so.
ASSUMED_S = 10.0
# More often than this, nothing follows from an answer.
_MOST_PASSES = 20


@dataclass(frozen=True)
class Going(State):
    """The job goes on.

    Attributes:
        facts: what is known; never changed.
    """

    facts: Facts | None = None


class ElasticJob:
    """The policy of an elastic job.

    Args:
        rules: what the user asked for.
    """

    def __init__(self, rules: Rules) -> None:
        self._rules = rules

    def begin(self, at_s: float) -> State:
        """The state of a job that begins now."""
        return Going(at_s + self._rules.gate_timeout_s, facts=Facts(at_s))

    def decide(self, state: State, event: Event) -> Decision:
        """What follows from an event."""
        if isinstance(state, Over):
            return Decision(state)
        if isinstance(state, Stopping):
            return on_event(state, event)
        assert isinstance(state, Going)
        assert state.facts is not None
        turn = Turn(self._rules, state.facts, event.at_s)
        match event:
            case events.HostsGone():
                outcome = Outcome(1, "no host of the job is left")
                return Decision(over(turn.facts, outcome, (), self._rules, event.at_s))
            case events.KillAsked():
                return stop(turn, Outcome(1), kill=True)
            case events.Signal():
                turn.stop(stopped_by(event.signum))
            case events.EndAsked():
                turn.stop(event.outcome)
            case _:
                news.take(turn, event)
                self._conclude(turn)
        if turn.verdict is not None:
            return stop(turn, turn.verdict)
        deadline_s = None if turn.wake_s == float("inf") else turn.wake_s
        return Decision(Going(deadline_s, facts=turn.facts), turn.commands, turn.why())

    def _conclude(self, turn: Turn) -> None:
        for _ in range(_MOST_PASSES):
            turn.wake_s = float("inf")
            before = len(turn.commands)
            self._pass(turn)
            if turn.verdict is not None or len(turn.commands) == before:
                return

    def _pass(self, turn: Turn) -> None:
        assume_running(turn)
        finishes.resume(turn)
        removals.end_absent_members(turn)
        removals.end_neighbors(turn)
        removals.send_away_unwanted_newcomers(turn)
        removals.note_removals(turn)
        slowness.keep_if_nobody_comes(turn)
        starting.start_workers(turn)
        endings.check_end(turn)
        if turn.verdict is not None:
            return
        proposed = plan.next_plan(turn)
        if proposed.members:
            publish(turn, proposed.members)
        endings.check_shortage(turn, proposed)
        removals.end_overdue(turn)
        starting.release_hosts(turn)


def assume_running(turn: Turn) -> None:
    """Workers that never say when they run are taken to, after a while."""
    facts = turn.facts
    if facts.membership is None or facts.hears_running or facts.runs or facts.broken_s is not None:
        return
    if turn.is_due(facts.published_s + ASSUMED_S):
        for each in facts.alive():
            turn.change(each, ran=facts.generation, entered=facts.generation)
        facts.runs = facts.trained = facts.entered = True
        news.hurry_dismissed(turn)


def publish(turn: Turn, members: tuple[Process, ...]) -> None:
    """Begins a new generation."""
    facts, rules = turn.facts, turn.rules
    generation = facts.generation + 1
    chosen = {each.number for each in members}
    leaving = [each for each in facts.alive() if each.number not in chosen]
    slow = [each for each in facts.slow() if each in leaving]
    whys = [*facts.changes, *(_why_it_leaves(turn, each) for each in leaving)]
    joining = [each for each in members if not facts.is_member(each)] if generation else []
    line = reports.change(generation, facts.size, members, joining, reports.joined(whys))
    if rules.reset_limit is not None and generation and facts.num_changes >= rules.reset_limit:
        _, _, why = line.partition(": ")
        limit = reports.RESET_LIMIT.format(
            limit=rules.reset_limit, word=rules.words.reset_limit, why=why
        )
        turn.stop(reports.failed(facts, facts.exits, limit))
        return
    if endings.check_stillborn(turn):
        return
    for each in slow:
        slowness.let_rest(turn, each)
    membership = assign_places(facts.membership, [each.worker for each in members], generation)
    turn.do(Publish(membership), line if generation else f"generation 0 has {len(members)} ranks")
    if generation and not _is_repeated(turn, chosen):
        turn.announce(line)
    for each in leaving:
        waits = each.waits_s is not None
        # Who trains goes when the others do, at a commit that may be hours away.
        due_s = turn.at_s + rules.grace_s if waits else FOREVER_S
        turn.dismiss(each, _why_it_leaves(turn, each), due_s)
    if facts.entered:
        facts.stillborn = 0 if facts.runs else facts.stillborn + 1
        if facts.broken_s is None or facts.stopped_s is None or facts.runs:
            facts.stopped_s = facts.broken_s
    else:
        facts.unseen |= {facts.generation}
    facts.membership, facts.published_s = membership, turn.at_s
    facts.ranks = {each.worker.identity: each.place.rank for each in membership.members}
    senior = sorted(membership.members, key=lambda each: (each.since, each.place.rank))
    numbers = {each.identity: each.number for each in members}
    facts.seniority = tuple(numbers[each.worker.identity] for each in senior)
    old = [each for each in members if each.ran >= 0]
    facts.entered = not old or any(each.waits_s is not None for each in old)
    facts.broken_s, facts.changes, facts.exits, facts.finished = None, (), History(), ()
    facts.runs, facts.short_s, facts.stands_s, facts.removal_s = False, None, 0.0, None
    facts.told_broken, facts.cut = False, ()
    for each in members:
        current = facts.processes[each.number]
        facts.processes[each.number] = replace(current, waits_s=None)


def _is_repeated(turn: Turn, chosen: set[int]) -> bool:
    """Whether the next generation is the current one again, which nobody who trains has seen."""
    facts = turn.facts
    return not facts.entered and not facts.changes and chosen == set(facts.seniority)


def _why_it_leaves(turn: Turn, process: Process) -> str:
    name = reports.named(turn.facts, process)
    if process.leaving:
        return f"{name} leaves: {process.leaving}"
    if process.slow and turn.facts.wanted(process):
        return f"{name} leaves: {process.slow}"
    host = turn.facts.hosts.get(process.host)
    if host is None or not host.listed:
        return f"{name} leaves: {process.host} is no longer listed"
    if host.stopping:
        return f"{name} leaves: the agent of {host.name} ends: {host.stopping}"
    if process.worker.slot >= host.slots:
        return f"{name} leaves: {host.name} has {host.slots} slots now"
    return f"{name} leaves: there are as many ranks as the job may have"
