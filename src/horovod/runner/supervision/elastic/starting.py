"""Which hosts get agents, and where workers are started. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from horovod._job.membership import Worker
from horovod.runner.supervision.commands import ReleaseHost, StartWorker, UseHost
from horovod.runner.supervision.elastic.hosts import FLIP_S, Agent
from horovod.runner.supervision.elastic.processes import Process, identity_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from horovod.runner.supervision.elastic.hosts import Host
    from horovod.runner.supervision.elastic.states import Facts
    from horovod.runner.supervision.elastic.turn import Turn


def free_slots(facts: Facts, host: Host) -> list[int]:
    """The slots of a host that no process holds, be it one that is about to end."""
    held = {
        process.worker.slot for process in facts.processes.values() if process.host == host.name
    }
    taken = held | host.spent
    return [slot for slot in range(host.slots) if slot not in taken]


def start_workers(turn: Turn) -> None:
    """Fills the free slots, in the order of hosts, up to the most ranks."""
    facts, rules = turn.facts, turn.rules
    generation = facts.generation
    if generation.finished and generation.membership is not None:
        return
    if not _passes_gate(turn):
        return
    number = sum(map(facts.stays, facts.processes.values()))
    number = _fill(turn, number, rules.most, _fit)
    # A place whose last worker was slow is better than none.
    _fill(turn, number, rules.min_np, _unfit)


def fit_slots(turn: Turn, host: Host) -> list[int]:
    """The free slots of a host where nothing speaks against a new worker."""
    facts = turn.facts
    if not host.usable(turn.at_s) or facts.is_slow_host(host.name):
        return []
    free = free_slots(facts, host)
    return [slot for slot in free if turn.at_s >= host.slot_rests_until(slot)]


def _fit(turn: Turn, host: Host) -> list[int]:
    for _, until in host.slow_until:
        if until < float("inf"):
            turn.is_due(until)
    return fit_slots(turn, host)


def _unfit(turn: Turn, host: Host) -> list[int]:
    free = free_slots(turn.facts, host) if host.usable(turn.at_s) else []
    fit = fit_slots(turn, host)
    return [slot for slot in free if slot not in fit]


def _fill(turn: Turn, number: int, most: float, slots_of: Callable[[Turn, Host], list[int]]) -> int:
    """Starts workers until there are so many; tells how many there are, or are about to be."""
    facts = turn.facts
    slow = {process.host for process in facts.slow()}
    for name in sorted(facts.hosts, key=lambda name: name in slow):  # others are better
        host = facts.hosts[name]
        if host.rests(turn.at_s) and number < most:
            turn.is_due(host.rests_until)
        if host.listed and host.comes_and_goes and number < most:
            turn.is_due(host.steady_at)
        room = most - number
        slots = slots_of(turn, host) if room > 0 else []
        slots = slots[: int(min(len(slots), room))]
        if slots and host.agent is Agent.NONE:
            facts.hosts[name] = replace(host, agent=Agent.STARTING)
            turn.do(UseHost(name, host.slots), f"{name} may have {host.slots} workers")
        number += len(slots)  # those of an agent that starts are as good as taken
        if host.agent is Agent.RUNS:
            for slot in slots:
                _start(turn, name, slot)
    return number


def _passes_gate(turn: Turn) -> bool:
    facts, rules, start = turn.facts, turn.rules, turn.facts.start
    if start is not None and start.slots_at is None:
        slots = sum(host.slots for host in facts.hosts.values() if host.usable(turn.at_s))
        # Those that stay do not wait for those that come and go.
        flips = any(host.comes_and_goes for host in facts.hosts.values())
        if slots < (rules.min_np if flips else rules.gate):
            return False
        start.slots_at = turn.at_s
        turn.reasons.append(f"{slots} slots are there, enough for {rules.gate} ranks")
    return True


def _start(turn: Turn, host: str, slot: int) -> None:
    facts = turn.facts
    number = facts.job.next_number
    facts.job.next_number += 1
    identity = identity_of(host, number)
    facts.processes[number] = Process(number, Worker(identity, host, slot))
    turn.do(StartWorker(host, number, identity, slot), f"starting {identity} on slot {slot}")


def release_hosts(turn: Turn) -> None:
    """Ends the agents of hosts that are left, and forgets those hosts."""
    facts = turn.facts
    held = {process.host for process in facts.processes.values()}
    for name, host in list(facts.hosts.items()):
        never = host.rests_until == float("inf")
        if name in held or (host.listed and not never):
            continue
        if host.agent is not Agent.NONE:
            facts.hosts[name] = replace(host, agent=Agent.NONE, stopping="")
            turn.do(ReleaseHost(name), f"{name} is no longer used")
        elif not host.listed and not host.failures and turn.at_s - host.dropped_at > FLIP_S:
            del facts.hosts[name]
