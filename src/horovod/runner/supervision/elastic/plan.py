"""Who is to take part next, and when. Pure.

A generation that is *broken* has lost a member, or one of them gave it up. Before the next one, all
that can be in it have to give it up, too: who did not is busy elsewhere, or silent. Only where no
old member has reached the generation yet, there is nothing to give up: those that still train in
the one before get to know the next one right away.

Generations that run change for newcomers that are ready, and for members that are to leave; one
change at a time, and all that is about to happen at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from horovod.runner.supervision.elastic.hosts import Agent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horovod.runner.supervision.elastic.processes import Process
    from horovod.runner.supervision.elastic.turn import Turn

# For workers that still load, once there are enough for the first generation.
START_PATIENCE_S = 10.0
# For others that load, once a newcomer is ready.
JOIN_PATIENCE_S = 5.0
# For those that replace members of hosts that leave.
REPLACE_PATIENCE_S = 10.0


@dataclass(frozen=True)
class Plan:
    """What is possible now.

    Attributes:
        members: of the next generation; empty if none is due.
        present: how many workers there are if these are too few to go on; None if they are not.
        needed: how many it takes.
    """

    members: tuple[Process, ...] = ()
    present: int | None = None
    needed: int = 0


NOTHING = Plan()


def next_plan(turn: Turn) -> Plan:
    """The next generation, as far as one is due."""
    facts = turn.facts
    if facts.finished and facts.membership is not None:
        return NOTHING
    for each in facts.members():
        says_nothing_more = each.left_s is not None and not each.leaving and not each.told
        if says_nothing_more and not turn.is_due((each.left_s or 0.0) + turn.rules.grace_s):
            return NOTHING  # its exit code tells whether the job is about to end
    if facts.membership is None:
        return _first(turn)
    alive = facts.alive()
    if not alive or (facts.trained and not any(each.ran >= 0 for each in alive)):
        return NOTHING  # newcomers alone would begin anew
    return _repaired(turn) if facts.broken_s is not None else _changed(turn)


def _first(turn: Turn) -> Plan:
    facts, rules = turn.facts, turn.rules
    if facts.gate_s is None:
        return NOTHING
    ready = facts.newcomers()[: rules.max_np]
    late = turn.is_due(facts.gate_s + rules.elastic_timeout_s)
    flips = any(each.comes_and_goes for each in facts.hosts.values())
    is_enough = facts.num_failures or facts.finished or late or flips
    needed = rules.min_np if is_enough else rules.gate
    if len(ready) < needed:
        facts.enough_s = None
        return Plan(present=len(ready), needed=needed)
    if facts.enough_s is None:
        facts.enough_s = turn.at_s
    waits = not late and len(ready) < rules.most and _more_come(turn)
    if waits and not turn.is_due(facts.enough_s + START_PATIENCE_S):
        return NOTHING
    return Plan(tuple(ready))


def _repaired(turn: Turn) -> Plan:
    facts, rules = turn.facts, turn.rules
    alive = facts.alive()
    if is_entered(turn):
        settled_s = facts.settled_s
        if any(each.waits_s is None for each in alive):
            return NOTHING
    else:
        settled_s = max(facts.settled_s, (facts.broken_s or 0.0) + rules.settle_s)
    if not turn.is_due(settled_s):
        return NOTHING
    members = _chosen(turn, alive)
    if len(members) < rules.min_np:
        return Plan(present=len(members), needed=rules.min_np)
    return Plan(members)


def _changed(turn: Turn) -> Plan:
    facts, rules = turn.facts, turn.rules
    if not facts.runs:
        return NOTHING
    alive = facts.alive()
    leave = [each for each in alive if not facts.stays(each)]
    members = _chosen(turn, alive)
    if {each.number for each in members} == {each.number for each in alive}:
        return NOTHING
    joining = [each for each in members if not facts.is_member(each)]
    room = rules.most - (len(members) - len(joining))
    waits = len(joining) < room and _more_come(turn)
    if any(each.leaving for each in leave):
        until_s = max(each.leaving_s or 0.0 for each in leave) + rules.settle_s
    elif leave:
        patience_s = REPLACE_PATIENCE_S if waits and len(joining) < len(leave) else rules.settle_s
        until_s = (facts.removal_s or 0.0) + patience_s
    else:
        first_s = min(each.ready_s or 0.0 for each in joining)
        until_s = first_s + (JOIN_PATIENCE_S if waits else 0.0)
    return Plan(members) if turn.is_due(until_s) else NOTHING


def _chosen(turn: Turn, alive: Sequence[Process]) -> tuple[Process, ...]:
    """The old members that stay, then newcomers; others only as far as it takes."""
    facts, rules = turn.facts, turn.rules
    stay = [each for each in alive if facts.stays(each)][: rules.max_np]
    slow = facts.slow()
    leave = [*slow, *(each for each in alive if not facts.stays(each) and each not in slow)]
    # A slow one is better than none until another one is there in its place.
    least = len(stay) + len(slow) if rules.slow_worker == "replace" else 0
    if leave and not any(each.ran >= 0 for each in stay):
        # Somebody has to hand over what was trained.
        knows = next((each for each in leave if each.ran >= 0), None if stay else leave[0])
        if knows is not None:
            leave.remove(knows)
            stay = [knows, *stay][: rules.max_np]
    free = None if rules.max_np is None else rules.max_np - len(stay)
    members = [*stay, *facts.newcomers()[:free]]
    missing = max(0, max(rules.min_np, least) - len(members))
    return (*members, *leave[:missing])


def is_entered(turn: Turn) -> bool:
    """Whether the members have gone into the current generation, and have to give it up.

    All old members go at the same time, so one of them tells for all.
    """
    facts = turn.facts
    return facts.entered or not any(each.ran >= 0 for each in facts.alive())


def _more_come(turn: Turn) -> bool:
    facts = turn.facts
    agents = any(
        each.agent is Agent.STARTING and each.usable(turn.at_s) for each in facts.hosts.values()
    )
    return agents or bool(facts.loading())
