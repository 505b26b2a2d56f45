"""Decide about the others when members of a generation have ended well. Pure.

Members of a generation come to their end at about the same time, and each may still have to test or
to save something. One that has to give up the generation was in the middle, however: its peer has
ended too early, and is lost.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from horovod.runner.supervision.elastic import reports
from horovod.runner.supervision.outcome import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterable

    from horovod.runner.supervision.elastic.facts import Facts
    from horovod.runner.supervision.elastic.processes import Process
    from horovod.runner.supervision.elastic.turn import Turn


def resume(turn: Turn) -> None:
    """Counts members that ended well as lost if others were still in the middle."""
    facts = turn.facts
    if not facts.finished or facts.membership is None:
        return
    middle = [each for each in facts.alive() if each.waits_s is not None and facts.counts(each)]
    first_s = min((each.waits_s or 0.0 for each in middle), default=float("inf"))
    if not middle or not turn.is_due(first_s + turn.rules.settle_s):
        return
    train = "trains" if len(middle) == 1 else "train"
    line = f"{_ended(facts)} while {_named(facts, middle)} still {train}"
    turn.announce(line)
    # Now it is known why.
    given_up = f" gave up generation {facts.generation} ("
    facts.changes = (*(each for each in facts.changes if given_up not in each), line)
    facts.num_failures += len(facts.finished)
    for each in facts.finished:
        spend_slot(turn, each)
    facts.finished = ()


def spend_slot(turn: Turn, process: Process) -> None:
    """Starts no worker in the place of one that ended well: it would do the same again."""
    host = turn.facts.hosts.get(process.host)
    if host is not None:
        spent = host.spent | {process.worker.slot}
        turn.facts.hosts[process.host] = replace(host, spent=spent)


def dismiss_newcomers(turn: Turn) -> None:
    """Dismisses newcomers once all who trained have ended: nobody can give them the state."""
    facts, due_s = turn.facts, turn.at_s + turn.rules.grace_s
    ends = [each for each in facts.members() if each.left_s is not None and not each.leaving]
    ended = [*facts.finished, *ends]
    if not ended or not facts.trained or any(each.ran >= 0 for each in facts.alive()):
        return
    why = f"{_named(facts, ended)} ended"
    for each in list(facts.processes.values()):
        if not each.takes_part:
            continue
        if facts.is_member(each) or each.ready_s is not None:
            turn.tell_broken(why)
            turn.dismiss(each, why, due_s)
        else:
            turn.end(each, why)


def outcome(facts: Facts) -> Outcome:
    """Return the outcome of a job of which some members ended well, when all have ended."""
    if facts.exits:
        real = [each for each in facts.exits if not each.is_follow_up]
        return reports.failed(facts, real or facts.exits, _ended(facts))
    if facts.cut:
        return Outcome(1, f"{reports.joined(facts.cut)}; {_ended(facts)}")
    return Outcome(0)


def _ended(facts: Facts) -> str:
    return f"{_named(facts, facts.finished)} ended with code 0"


def _named(facts: Facts, processes: Iterable[Process]) -> str:
    return reports.joined(
        (f"{reports.named(facts, each)} on {each.host}" for each in processes), ", "
    )
