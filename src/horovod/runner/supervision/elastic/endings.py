"""When an elastic job ends by itself, and as what. Pure.

Members of a generation come to their end at about the same time, and each may still have to test or
to save something. One that has to give up the generation was in the middle, however: its peer has
ended too early, and is lost.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from horovod.runner.supervision.elastic import reports
from horovod.runner.supervision.elastic.hosts import Agent
from horovod.runner.supervision.elastic.starting import free_slots
from horovod.runner.supervision.outcome import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from horovod.runner.supervision.elastic.generations import Plan
    from horovod.runner.supervision.elastic.processes import Process
    from horovod.runner.supervision.elastic.states import Facts, Start
    from horovod.runner.supervision.elastic.turn import Turn
    from horovod.runner.supervision.failure import RankExit

# So many generations in a row that never ran are one too many.
MOST_STILLBORN = 10


def check_end(turn: Turn) -> None:
    """Ends the job if there is nothing to wait for."""
    repeated = _repeated(turn.facts.generation.exits)
    if repeated:
        hosts = sorted({each.hostname for each in repeated})
        why = f"the same error came on {' and '.join(hosts)}, so the program is at fault"
        turn.stop(reports.failed(turn.facts, repeated, why))
    elif turn.facts.start is not None:
        _check_before_first(turn, turn.facts.start)
    else:
        _check_generation(turn)


def _repeated(exits: Sequence[RankExit]) -> list[RankExit]:
    """Failures of several hosts in one generation with the same error."""
    alike: dict[tuple[str, str], list[RankExit]] = {}
    for rank_exit in exits:
        key = _error_of(rank_exit)
        if key is not None:
            alike.setdefault(key, []).append(rank_exit)
    several = (each for each in alike.values() if len({one.hostname for one in each}) > 1)
    return next(several, [])


def _error_of(ended: RankExit) -> tuple[str, str] | None:
    if ended.start_error:
        return "start", ended.start_error
    if ended.report is None or ended.is_follow_up:
        return None
    return ended.report.kind, ended.report.where or ended.report.text


def _check_before_first(turn: Turn, start: Start) -> None:
    facts, generation = turn.facts, turn.facts.generation
    starting = any(
        host.agent is Agent.STARTING and host.usable(turn.at_s) for host in facts.hosts.values()
    )
    if facts.processes or starting or start.slots_at is None:
        return
    if generation.exits:
        turn.stop(reports.failed(facts, generation.exits, ""))
    elif generation.finished:
        turn.stop(Outcome(0))


def _check_generation(turn: Turn) -> None:
    facts, generation = turn.facts, turn.facts.generation
    _dismiss_newcomers(turn)
    members, alive = facts.members(), facts.alive()
    knows_nothing = facts.job.has_trained and not any(process.ran >= 0 for process in alive)
    if alive and not (knows_nothing and not generation.finished):
        return
    if any(not process.told for process in members if not process.takes_part):
        return  # its exit code, or the end of its time, is still to come
    if generation.finished:
        turn.stop(_outcome(facts))
        return
    lost = f"no worker is left that has the training state (generation {generation.number})"
    # Those that are left are newcomers. If nobody is left, the first failure says it all.
    outcome = reports.failed(facts, generation.exits, lost if facts.processes else "")
    if outcome.failure is None:
        why = f": {reports.joined(generation.changes)}" if generation.changes else ""
        outcome = Outcome(1, f"{lost}{why}")
    turn.stop(outcome)


def check_shortage(turn: Turn, plan: Plan) -> None:
    """Waits for workers, up to the elastic timeout, if there are too few to go on."""
    facts, rules = turn.facts, turn.rules
    generation = facts.generation
    if facts.start is not None and facts.start.slots_at is None:
        _check_slots(turn, facts.start)
        return
    if plan.present is None:
        return
    loss = facts.loss
    since = None if loss is None else loss.short_at
    if facts.start is not None:
        since = facts.start.slots_at
    what = f"{plan.present} of the {plan.needed} workers that the job needs are present"
    if _is_hopeless(turn, plan.needed):
        _give_up(turn, f"{what}, and no host with more can come")
    elif since is None:
        assert loss is not None
        loss.short_at = turn.at_s
        turn.is_due(turn.at_s + rules.elastic_timeout_s)
        why = f"{reports.joined(generation.changes)}; " if generation.changes else ""
        wait = f"waiting up to {rules.elastic_timeout_s:g} s for more"
        turn.announce(f"{why}{what}: {wait}; {reports.listing(facts.hosts.values())}")
    elif turn.is_due(since + rules.elastic_timeout_s):
        _give_up(turn, f"only {what} after {rules.elastic_timeout_s:g} s")


def _check_slots(turn: Turn, start: Start) -> None:
    facts, rules = turn.facts, turn.rules
    hosts = facts.hosts.values()
    slots = sum(host.slots for host in hosts if host.usable(turn.at_s))
    what = f"{slots} of the {rules.gate} slots that the job needs are present"
    if rules.fixed_hosts and hosts:
        _give_up(turn, f"only {what}, and no other host can come")
    elif turn.is_due(facts.job.began_at + rules.gate_timeout_s):
        _give_up(turn, f"only {what} after {rules.gate_timeout_s:g} s")
    elif hosts and not start.is_announced:
        start.is_announced = True
        wait = f"waiting up to {rules.gate_timeout_s:g} s for more"
        turn.announce(f"{what}: {wait}; {reports.listing(hosts)}")


def _is_hopeless(turn: Turn, needed: int) -> bool:
    """Whether the hosts that there are can never have enough workers."""
    facts = turn.facts
    if not turn.rules.fixed_hosts:
        return False
    possible = sum(map(facts.stays, facts.processes.values()))
    dying = [process for process in facts.processes.values() if not facts.stays(process)]
    for host in facts.hosts.values():
        if host.usable(turn.at_s) or host.rests(turn.at_s):
            held = {each.worker.slot for each in dying if each.host == host.name}
            possible += len(free_slots(facts, host)) + len(held - host.spent)
    return possible < needed


def _give_up(turn: Turn, what: str) -> None:
    facts, generation = turn.facts, turn.facts.generation
    words = turn.rules.words
    hint = (
        f"{reports.listing(facts.hosts.values())}; see {words.min_np} and {words.elastic_timeout}"
    )
    why = f"; {reports.joined(generation.changes)}" if generation.changes else ""
    if generation.exits:
        turn.stop(reports.failed(facts, generation.exits, f"{what}; {hint}"))
    else:
        turn.stop(Outcome(1, f"{what}{why}; {hint}"))


def check_stillborn(turn: Turn) -> bool:
    """Ends a job whose workers cannot connect to one another; tells whether it did."""
    facts = turn.facts
    if not facts.job.hears_running or facts.job.stillborn < MOST_STILLBORN:
        return False
    why = reports.joined(facts.generation.changes[-2:])
    turn.stop(Outcome(1, f"{facts.job.stillborn} generations in a row never ran: {why}"))
    return True


# -- members that have ended well


def resume(turn: Turn) -> None:
    """Counts members that ended well as lost if others were still in the middle."""
    facts, generation = turn.facts, turn.facts.generation
    if not generation.finished or generation.membership is None:
        return
    middle = [
        process
        for process in facts.alive()
        if process.waits_at is not None and facts.counts(process)
    ]
    first_at = min((process.waits_at or 0.0 for process in middle), default=float("inf"))
    if not middle or not turn.is_due(first_at + turn.rules.settle_s):
        return
    train = "trains" if len(middle) == 1 else "train"
    line = f"{_ended(facts)} while {_named(facts, middle)} still {train}"
    turn.announce(line)
    # Now it is known why.
    given_up = f" gave up generation {generation.number} ("
    others = (text for text in generation.changes if given_up not in text)
    generation.changes = (*others, line)
    facts.job.num_failures += len(generation.finished)
    for process in generation.finished:
        spend_slot(turn, process)
    generation.finished = ()


def spend_slot(turn: Turn, process: Process) -> None:
    """Starts no worker in the place of one that ended well: it would do the same again."""
    host = turn.facts.hosts.get(process.host)
    if host is not None:
        spent = host.spent | {process.worker.slot}
        turn.facts.hosts[process.host] = replace(host, spent=spent)


def _dismiss_newcomers(turn: Turn) -> None:
    """Dismisses newcomers once all who trained have ended: nobody can give them the state."""
    facts, due_at = turn.facts, turn.at_s + turn.rules.grace_s
    ends = [
        process
        for process in facts.members()
        if process.left_at is not None and not process.leaving
    ]
    ended = [*facts.generation.finished, *ends]
    if not ended or not facts.job.has_trained or any(process.ran >= 0 for process in facts.alive()):
        return
    why = f"{_named(facts, ended)} ended"
    for process in list(facts.processes.values()):
        if not process.takes_part:
            continue
        if facts.is_member(process) or process.ready_at is not None:
            turn.tell_broken(why)
            turn.dismiss(process, why, due_at)
        else:
            turn.end(process, why)


def _outcome(facts: Facts) -> Outcome:
    """Return the outcome of a job of which some members ended well, when all have ended."""
    if facts.generation.exits:
        real = [rank_exit for rank_exit in facts.generation.exits if not rank_exit.is_follow_up]
        return reports.failed(facts, real or facts.generation.exits, _ended(facts))
    if facts.generation.cut:
        return Outcome(1, f"{reports.joined(facts.generation.cut)}; {_ended(facts)}")
    return Outcome(0)


def _ended(facts: Facts) -> str:
    return f"{_named(facts, facts.generation.finished)} ended with code 0"


def _named(facts: Facts, processes: Iterable[Process]) -> str:
    return reports.joined(
        (f"{reports.named(facts, process)} on {process.host}" for process in processes), ", "
    )
