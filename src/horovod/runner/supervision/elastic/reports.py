"""Composes the messages for the user of an elastic job. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horovod.runner.supervision.failure import cause, first_failure, headline, last_words
from horovod.runner.supervision.outcome import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from horovod.runner.supervision.elastic.hosts import Host
    from horovod.runner.supervision.elastic.processes import Process
    from horovod.runner.supervision.elastic.rules import Rules
    from horovod.runner.supervision.elastic.states import Facts
    from horovod.runner.supervision.failure import RankExit

MOST_PARTS = 6


def named(facts: Facts, process: Process) -> str:
    """Return the name of a worker, such as "rank 2 (blue-5)" or "worker blue-5"."""
    rank = facts.generation.ranks.get(process.identity)
    return f"worker {process.identity}" if rank is None else f"rank {rank} ({process.identity})"


def end_of(process: Process, ended: RankExit) -> str:
    """Return one line on how a worker ended."""
    line = headline(ended)
    if ended.rank < 0:
        return line.replace(f"rank {ended.rank} ", f"worker {process.identity} ", 1)
    return line


def rest(host: Host, at_s: float) -> str:
    """Return whether and when a host that failed gets new workers, in words."""
    if host.rests_until == float("inf"):
        return f"{host.name} gets no new workers"
    return f"{host.name} gets no new workers for {host.rests_until - at_s:.1f} s"


def joined(parts: Iterable[str], separator: str = "; ") -> str:
    """The first of many parts."""
    each = list(parts)
    more = [f"and {len(each) - MOST_PARTS} more"] if len(each) > MOST_PARTS else []
    return separator.join(each[:MOST_PARTS] + more)


def listing(hosts: Iterable[Host]) -> str:
    """The hosts that discovery lists."""
    names = [f"{host.name}:{host.slots}" for host in hosts if host.listed]
    return f"discovery lists {joined(names, ', ')}" if names else "discovery lists no host"


def change(
    generation: int, before: int, plan: Sequence[Process], joining: Sequence[Process], why: str
) -> str:
    """The line about a new generation."""
    parts = [why] if why else []
    if joining:
        names = joined((process.identity for process in joining), ", ")
        parts.append(f"{names} {'join' if len(joining) > 1 else 'joins'}")
    text = "; ".join(parts) or "the same workers reconnect"
    return f"generation {generation}, {before} -> {len(plan)} ranks: {text}"


def failed(facts: Facts, exits: Sequence[RankExit], otherwise: str) -> Outcome:
    """Return the outcome of a job whose workers failed.

    Args:
        facts: of the job.
        exits: of the failed workers.
        otherwise: what to say if none of them failed by itself.
    """
    failure = first_failure(exits)
    if failure is None:
        return Outcome(1, otherwise)
    hosts = {process.identity: process.host for process in facts.alive()}
    running = {facts.generation.ranks[identity]: host for identity, host in hosts.items()}
    message = cause(failure, running)
    if failure.rank < 0:
        message = message.replace("rank -1 ", f"worker {failure.hostname}-{failure.worker} ", 1)
    if otherwise:
        message = f"{message}; {otherwise}"
    return Outcome(failure.exit_code, message, failure, details=last_words(failure))


def summary(facts: Facts, at_s: float) -> str:
    """Return one line that summarizes the job."""
    job, changes = facts.job, facts.num_changes
    parts = [
        f"the job ran for {at_s - job.began_at:.1f} s",
        f"{changes} change{'' if changes == 1 else 's'} of its workers",
        f"{job.num_failures} failure{'' if job.num_failures == 1 else 's'}",
    ]
    if job.gone_slow:
        parts.append(f"{job.gone_slow} slow worker{'' if job.gone_slow == 1 else 's'} left")
    if job.hears_running and changes:
        parts.append(f"training stood still for {job.stood_s:.1f} s")
    if job.replayed:
        samples = sum(job.replayed.values())
        parts.append(f"{samples} sample{'' if samples == 1 else 's'} done again")
    return ", ".join(parts)


def listed(names: Sequence[str]) -> str:
    """Return the first of many names, and how many more there are."""
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return f"{', '.join(names[:8])}{more}"


def reset_limit(facts: Facts, rules: Rules, change: str) -> Outcome:
    """Return how a job ends that has changed as often as it may, and would have to once more."""
    limit = f"as often as {rules.words.reset_limit} {rules.reset_limit} allows"
    _, _, why = change.partition(": ")
    text = f"the job has changed {rules.reset_limit} times, {limit}, and would have to change again"
    return failed(facts, facts.generation.exits, f"{text}: {why}")
