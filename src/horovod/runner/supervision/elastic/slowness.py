"""Decides whether workers that make the others wait have to go. Pure.

A worker that is *slow* is to go, because the user wants that and the job is better off without it:
with "remove" at once; with "replace" as soon as another worker is ready, in the same change. There
is one slow worker at a time. Its slot rests as a host does after a failure; so do all slots of its
host if the job has no other worker there, as then the fault may be the host's.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from horovod.runner.supervision.elastic import reports
from horovod.runner.supervision.elastic.starting import fit_slots

if TYPE_CHECKING:
    from horovod.runner.supervision.elastic.processes import Process
    from horovod.runner.supervision.elastic.turn import Turn
    from horovod.runner.supervision.events import WorkerSlow

REMOVE = "remove"
REPLACE = "replace"


def on_slow(turn: Turn, process: Process, event: WorkerSlow) -> None:
    """A member makes the others wait."""
    facts, rules = turn.facts, turn.rules
    generation = facts.generation
    trains = generation.runs and facts.loss is None and not generation.finished
    if rules.slow_worker not in (REMOVE, REPLACE) or not trains:
        return
    if any(not facts.stays(member) for member in facts.alive()) or not facts.is_member(process):
        return  # one change at a time
    why_not = _why_it_stays(turn, event.gain)
    if not why_not:
        process = turn.note(replace(process, slow=event.text))
        why_not = _why_nobody_replaces_it(turn)
    if why_not:
        _keep(turn, process, why_not)
    else:
        name = reports.named(facts, process)
        turn.reasons.append(f"{name} is to go ({rules.slow_worker}): {event.text}")


def _why_it_stays(turn: Turn, gain: float) -> str:
    facts, rules = turn.facts, turn.rules
    generation = facts.generation
    limit = rules.reset_limit
    if limit is not None and generation.number >= limit:
        return f"{rules.words.reset_limit} {limit} allows no further change"
    if rules.slow_worker == REMOVE:
        if generation.size <= rules.min_np:
            return f"the job needs {rules.min_np} ranks ({rules.words.min_np})"
        size = generation.size
        if gain <= 1 / size:
            return f"{size - 1} ranks would process less than {size} with it"
    return ""


def _why_nobody_replaces_it(turn: Turn) -> str:
    if turn.rules.slow_worker == REMOVE or _has_spare(turn):
        return ""
    words = turn.rules.words
    return f"there is no free slot for another worker ({words.slow_worker} replace)"


def _has_spare(turn: Turn) -> bool:
    facts = turn.facts
    if facts.newcomers() or facts.loading():
        return True
    return any(fit_slots(turn, host) for host in facts.hosts.values())


def _keep(turn: Turn, process: Process, why: str) -> None:
    facts = turn.facts
    turn.note(replace(process, slow=""))
    if process.identity not in facts.job.kept_slow:
        facts.job.kept_slow |= {process.identity}
        turn.announce(f"{reports.named(facts, process)} is slow, but stays: {why}")


def keep_if_nobody_comes(turn: Turn) -> None:
    """A worker that was to be replaced stays if the one in its place failed."""
    for process in turn.facts.slow():
        why = _why_nobody_replaces_it(turn)
        if why:
            _keep(turn, process, why)


def let_rest(turn: Turn, process: Process) -> None:
    """The slot of a worker that goes because it is slow; called before it has gone."""
    facts = turn.facts
    facts.job.gone_slow += 1
    host = facts.hosts[process.host]
    times = host.times_slow + 1
    until = turn.at_s + turn.rules.rest_s(host.name, times)
    slots = range(host.slots) if facts.is_slow_host(host.name) else (process.worker.slot,)
    rests = {**dict(host.slow_until), **dict.fromkeys(slots, until)}
    facts.hosts[host.name] = replace(
        host, slow_until=tuple(sorted(rests.items())), times_slow=times
    )
