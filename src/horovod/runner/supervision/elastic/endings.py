"""When an elastic job ends by itself, and as what. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horovod.runner.supervision.elastic import finishes, reports
from horovod.runner.supervision.elastic.hosts import Agent
from horovod.runner.supervision.elastic.starting import free_slots
from horovod.runner.supervision.outcome import Outcome

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horovod.runner.supervision.elastic.plan import Plan
    from horovod.runner.supervision.elastic.turn import Turn
    from horovod.runner.supervision.failure import RankExit

# So many generations in a row that never ran are one too many.
MOST_STILLBORN = 10


def check_end(turn: Turn) -> None:
    """Ends the job if there is nothing to wait for."""
    repeated = _repeated(turn.facts.exits)
    if repeated:
        hosts = sorted({each.hostname for each in repeated})
        why = f"the same error came on {' and '.join(hosts)}, so it is one of the program"
        turn.stop(reports.failed(turn.facts, repeated, why))
    elif turn.facts.membership is None:
        _check_before_first(turn)
    else:
        _check_generation(turn)


def _repeated(exits: Sequence[RankExit]) -> list[RankExit]:
    """Failures of several hosts in one generation with the same error."""
    alike: dict[tuple[str, str], list[RankExit]] = {}
    for each in exits:
        key = _error_of(each)
        if key is not None:
            alike.setdefault(key, []).append(each)
    several = (each for each in alike.values() if len({one.hostname for one in each}) > 1)
    return next(several, [])


def _error_of(ended: RankExit) -> tuple[str, str] | None:
    if ended.start_error:
        return "start", ended.start_error
    if ended.report is None or ended.is_follow_up:
        return None
    return ended.report.kind, ended.report.where or ended.report.text


def _check_before_first(turn: Turn) -> None:
    facts = turn.facts
    starting = any(
        each.agent is Agent.STARTING and each.usable(turn.at_s) for each in facts.hosts.values()
    )
    if facts.processes or starting or facts.gate_s is None:
        return
    if facts.exits:
        turn.stop(reports.failed(facts, facts.exits, ""))
    elif facts.finished:
        turn.stop(Outcome(0))


def _check_generation(turn: Turn) -> None:
    facts = turn.facts
    finishes.dismiss_newcomers(turn)
    members, alive = facts.members(), facts.alive()
    knows_nothing = facts.trained and not any(each.ran >= 0 for each in alive)
    if alive and not (knows_nothing and not facts.finished):
        return
    if any(not each.told for each in members if not each.takes_part):
        return  # its exit code, or the end of its time, is still to come
    if facts.finished:
        turn.stop(finishes.outcome(facts))
        return
    lost = f"no worker is left that knows what was trained (generation {facts.generation})"
    # Those that are left are newcomers. If nobody is left, the first failure says it all.
    outcome = reports.failed(facts, facts.exits, lost if facts.processes else "")
    if outcome.failure is None:
        why = f": {reports.joined(facts.changes)}" if facts.changes else ""
        outcome = Outcome(1, f"{lost}{why}")
    turn.stop(outcome)


def check_shortage(turn: Turn, plan: Plan) -> None:
    """Waits for workers, up to the elastic timeout, if there are too few to go on."""
    facts, rules = turn.facts, turn.rules
    if facts.gate_s is None:
        _check_gate(turn)
        return
    if plan.present is None:
        if facts.broken_s is None:
            facts.short_s = None
        return
    since_s = facts.gate_s if facts.membership is None else facts.short_s
    what = f"{plan.present} of the {plan.needed} workers are there that the job needs"
    if _is_hopeless(turn, plan.needed):
        _give_up(turn, f"{what}, and no host can come that could have more")
    elif since_s is None:
        facts.short_s = turn.at_s
        turn.is_due(turn.at_s + rules.elastic_timeout_s)
        why = f"{reports.joined(facts.changes)}; " if facts.changes else ""
        wait = f"waiting up to {rules.elastic_timeout_s:g} s for more"
        turn.announce(f"{why}{what}: {wait}; {reports.listing(facts.hosts.values())}")
    elif turn.is_due(since_s + rules.elastic_timeout_s):
        _give_up(turn, f"only {what} after {rules.elastic_timeout_s:g} s")


def _check_gate(turn: Turn) -> None:
    facts, rules = turn.facts, turn.rules
    hosts = facts.hosts.values()
    slots = sum(each.slots for each in hosts if each.usable(turn.at_s))
    what = f"{slots} of the {rules.gate} slots are there that the job needs"
    if rules.fixed_hosts and hosts:
        _give_up(turn, f"only {what}, and no other host can come")
    elif turn.is_due(facts.began_s + rules.gate_timeout_s):
        _give_up(turn, f"only {what} after {rules.gate_timeout_s:g} s")
    elif hosts and facts.short_s is None:
        facts.short_s = turn.at_s
        wait = f"waiting up to {rules.gate_timeout_s:g} s for more"
        turn.announce(f"{what}: {wait}; {reports.listing(hosts)}")


def _is_hopeless(turn: Turn, needed: int) -> bool:
    """Whether the hosts that there are can never have enough workers."""
    facts = turn.facts
    if not turn.rules.fixed_hosts:
        return False
    possible = sum(map(facts.stays, facts.processes.values()))
    dying = [each for each in facts.processes.values() if not facts.stays(each)]
    for host in facts.hosts.values():
        if host.usable(turn.at_s) or host.rests(turn.at_s):
            held = {each.worker.slot for each in dying if each.host == host.name}
            possible += len(free_slots(facts, host)) + len(held - host.spent)
    return possible < needed


def _give_up(turn: Turn, what: str) -> None:
    facts = turn.facts
    words = turn.rules.words
    hint = (
        f"{reports.listing(facts.hosts.values())}; see {words.min_np} and {words.elastic_timeout}"
    )
    why = f"; {reports.joined(facts.changes)}" if facts.changes else ""
    if facts.exits:
        turn.stop(reports.failed(facts, facts.exits, f"{what}; {hint}"))
    else:
        turn.stop(Outcome(1, f"{what}{why}; {hint}"))


def check_stillborn(turn: Turn) -> bool:
    """Ends a job whose workers cannot connect to one another; tells whether it did."""
    facts = turn.facts
    if not facts.hears_running or facts.stillborn < MOST_STILLBORN:
        return False
    why = reports.joined(facts.changes[-2:])
    turn.stop(Outcome(1, f"{facts.stillborn} generations in a row never ran: {why}"))
    return True
