"""Chooses the members of the next generation, and when it begins. Pure.

A generation that is *lost* has lost a member, or one of them gave it up. Before the next one, all
that can be in it have to give it up, too: who did not is busy elsewhere, or silent. Only where no
old member has reached the generation yet, there is nothing to give up: those that still train in
the one before get to know the next one right away.

Generations that run change for newcomers that are ready, and for members that are to leave; one
change at a time, and all that is about to happen at once.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from horovod._base.fast_dataclass import dataclass
from horovod._job.membership import assign_places
from horovod.runner.supervision.commands import Publish
from horovod.runner.supervision.elastic import endings, reports, slowness
from horovod.runner.supervision.elastic.hosts import Agent
from horovod.runner.supervision.elastic.processes import FOREVER_S
from horovod.runner.supervision.elastic.states import Generation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horovod.runner.supervision.elastic.processes import Process
    from horovod.runner.supervision.elastic.states import Loss, Start
    from horovod.runner.supervision.elastic.turn import Turn

# For workers that still load, once there are enough for the first generation.
START_PATIENCE_S = 10.0
# For others that load, once a newcomer is ready.
JOIN_PATIENCE_S = 5.0
# For those that replace members of hosts that leave.
REPLACE_PATIENCE_S = 10.0


@dataclass(frozen=True)
class Plan:
    """Members of the next generation, or the reason why none is due.

    Attributes:
        reason: why the next generation is due, or not.
        members: its members; empty if none is due.
        present: how many workers there are if these are too few to go on; None if they are not.
        needed: how many it takes.
    """

    reason: str
    members: tuple[Process, ...] = ()
    present: int | None = None
    needed: int = 0


def next_generation(turn: Turn) -> Plan:
    """Return the next generation if it is due, and why; the first answer counts."""
    facts, rules = turn.facts, turn.rules
    if facts.start is not None:
        return _first(turn, facts.start)
    if facts.generation.finished:
        return Plan("members have finished: the others may be about to")
    for member in facts.members():
        if member.says_nothing_more and not turn.is_due((member.left_at or 0.0) + rules.grace_s):
            return Plan("the exit code of a member that left tells whether the job is about to end")
    alive = facts.alive()
    if not alive:
        return Plan("no member can go on")
    if facts.job.has_trained and not any(process.ran >= 0 for process in alive):
        return Plan("newcomers alone would begin the training again")
    if facts.loss is not None:
        return _after_loss(turn, facts.loss, alive)
    if not facts.generation.runs:
        return Plan("not all members have connected")
    members = _choose(turn, alive)
    if {process.number for process in members} == {process.number for process in alive}:
        return Plan("nobody comes or goes")
    if len(members) < rules.min_np:
        return Plan("some have left, so that there would be too few ranks after a change")
    if not turn.is_due(_change_due_at(turn, members, alive)):
        return Plan("others may come or go at the same time")
    return Plan("workers come or go", members)


def _first(turn: Turn, start: Start) -> Plan:
    facts, rules = turn.facts, turn.rules
    if start.slots_at is None:
        return Plan("there are too few slots")
    ready = facts.newcomers()[: rules.max_np]
    late = turn.is_due(start.slots_at + rules.elastic_timeout_s)
    flips = any(host.comes_and_goes for host in facts.hosts.values())
    is_enough = facts.job.num_failures or facts.generation.finished or late or flips
    needed = rules.min_np if is_enough else rules.gate
    if len(ready) < needed:
        start.enough_at = None
        return Plan("too few workers are ready", present=len(ready), needed=needed)
    if start.enough_at is None:
        start.enough_at = turn.at_s
    waits = not late and len(ready) < rules.most and _more_come(turn)
    if waits and not turn.is_due(start.enough_at + START_PATIENCE_S):
        return Plan("further workers are about to be ready")
    return Plan("enough workers are ready", tuple(ready))


def _after_loss(turn: Turn, loss: Loss, alive: Sequence[Process]) -> Plan:
    settled_at = turn.facts.job.settled_at
    if not turn.facts.is_entered():
        settled_at = max(settled_at, loss.since + turn.rules.settle_s)
    elif any(process.waits_at is None for process in alive):
        return Plan("not all members have given up the generation")
    if not turn.is_due(settled_at):
        return Plan("further losses may follow")
    members, needed = _choose(turn, alive), turn.rules.min_np
    if len(members) < needed:
        return Plan("too few workers are left", present=len(members), needed=needed)
    return Plan("all that are left have given up the generation", members)


def _change_due_at(turn: Turn, members: Sequence[Process], alive: Sequence[Process]) -> float:
    """Return when a generation that runs is to change into other members."""
    facts, rules = turn.facts, turn.rules
    leave = [process for process in alive if not facts.stays(process)]
    joining = [process for process in members if not facts.is_member(process)]
    room = rules.most - (len(members) - len(joining))
    waits = len(joining) < room and _more_come(turn)
    if any(process.leaving for process in leave):
        return max(process.leaving_at or 0.0 for process in leave) + rules.settle_s
    if leave:
        replaces = waits and len(joining) < len(leave)
        patience_s = REPLACE_PATIENCE_S if replaces else rules.settle_s
        return (facts.generation.removal_at or 0.0) + patience_s
    first_at = min(process.ready_at or 0.0 for process in joining)
    return first_at + (JOIN_PATIENCE_S if waits else 0.0)


def _choose(turn: Turn, alive: Sequence[Process]) -> tuple[Process, ...]:
    """Return the old members that stay, then newcomers; others only as far as it takes."""
    facts, rules = turn.facts, turn.rules
    stay = [process for process in alive if facts.stays(process)][: rules.max_np]
    slow = facts.slow()
    leave = [
        *slow,
        *(process for process in alive if not facts.stays(process) and process not in slow),
    ]
    # A slow one is better than none until another one is there in its place.
    least = len(stay) + len(slow) if rules.slow_worker == "replace" else 0
    if leave and not any(process.ran >= 0 for process in stay):
        # Somebody has to hand over what was trained.
        knows = next((process for process in leave if process.ran >= 0), None if stay else leave[0])
        if knows is not None:
            leave.remove(knows)
            stay = [knows, *stay][: rules.max_np]
    free = None if rules.max_np is None else rules.max_np - len(stay)
    members = [*stay, *facts.newcomers()[:free]]
    missing = max(0, max(rules.min_np, least) - len(members))
    return (*members, *leave[:missing])


def _more_come(turn: Turn) -> bool:
    facts = turn.facts
    agents = any(
        host.agent is Agent.STARTING and host.usable(turn.at_s) for host in facts.hosts.values()
    )
    return agents or bool(facts.loading())


# -- its beginning


def publish(turn: Turn, members: tuple[Process, ...]) -> None:
    """Begin a new generation, unless there have been enough of them."""
    facts, rules, old = turn.facts, turn.rules, turn.facts.generation
    number = old.number + 1
    leaving = [each for each in facts.alive() if each not in members]
    joining = [each for each in members if not facts.is_member(each)] if number else []
    whys = [*old.changes, *(_why_it_leaves(turn, each) for each in leaving)]
    line = reports.change(number, old.size, members, joining, reports.joined(whys))
    if rules.reset_limit is not None and number and facts.num_changes >= rules.reset_limit:
        turn.stop(reports.reset_limit(facts, rules, line))
        return
    if endings.check_stillborn(turn):
        return
    for process in [each for each in facts.slow() if each in leaving]:
        slowness.let_rest(turn, process)
    membership = assign_places(old.membership, [each.worker for each in members], number)
    turn.do(Publish(membership), line if number else f"generation 0 has {len(members)} ranks")
    if number and not _is_repeated(turn, members):
        turn.announce(line)
    for process in leaving:
        # Who trains goes when the others do, at a commit that may be hours away.
        due_at = FOREVER_S if process.waits_at is None else turn.at_s + rules.grace_s
        turn.dismiss(process, _why_it_leaves(turn, process), due_at)
    _count(turn)
    senior = sorted(membership.members, key=lambda member: (member.since, member.place.rank))
    numbers = {each.identity: each.number for each in members}
    trained = [each for each in members if each.ran >= 0]
    facts.generation = Generation(
        membership,
        ranks={each.worker.identity: each.place.rank for each in membership.members},
        seniority=tuple(numbers[each.worker.identity] for each in senior),
        published_at=turn.at_s,
        is_entered=not trained or any(each.waits_at is not None for each in trained),
    )
    facts.start = facts.loss = None
    for process in members:
        turn.note(replace(facts.processes[process.number], waits_at=None))


def _count(turn: Turn) -> None:
    """Note what became of the last generation."""
    job, old, loss = turn.facts.job, turn.facts.generation, turn.facts.loss
    if not old.is_entered:
        job.unseen |= {old.number}
        return
    job.stillborn = 0 if old.runs else job.stillborn + 1
    if loss is None or job.stopped_at is None or old.runs:
        job.stopped_at = None if loss is None else loss.since


def _is_repeated(turn: Turn, members: Sequence[Process]) -> bool:
    """Return whether the current generation, which nobody who trains has seen, comes again."""
    old = turn.facts.generation
    numbers = {process.number for process in members}
    return not old.is_entered and not old.changes and numbers == set(old.seniority)


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
    return f"{name} leaves: the job already has its maximum number of ranks"
