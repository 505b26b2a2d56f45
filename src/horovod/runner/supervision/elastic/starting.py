"""Which hosts get agents, and where workers are started. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from horovod.job.membership import Worker
from horovod.runner.supervision.elastic.events import ReleaseHost, StartOn, UseHost, identity_of
from horovod.runner.supervision.elastic.hosts import Agent
from horovod.runner.supervision.elastic.processes import Process

if TYPE_CHECKING:
    from horovod.runner.supervision.elastic.facts import Facts
    from horovod.runner.supervision.elastic.hosts import Host
    from horovod.runner.supervision.elastic.turn import Turn


def free_slots(facts: Facts, host: Host) -> list[int]:
    """The slots of a host that no process holds, be it one that is about to end."""
    held = {each.worker.slot for each in facts.processes.values() if each.host == host.name}
    return [slot for slot in range(host.slots) if slot not in held | host.spent]


def start_workers(turn: Turn) -> None:
    """Fills the free slots, in the order of hosts, up to the most ranks."""
    facts, rules = turn.facts, turn.rules
    if facts.finished and facts.membership is not None:
        return
    if not _passes_gate(turn):
        return
    number = sum(map(facts.stays, facts.processes.values()))
    for name in list(facts.hosts):
        host = facts.hosts[name]
        if host.rests(turn.at_s) and number < rules.most:
            turn.is_due(host.rests_until_s)
        slots = free_slots(facts, host) if host.usable(turn.at_s) else []
        slots = slots[: int(min(len(slots), rules.most - number))]
        if slots and host.agent is Agent.NONE:
            facts.hosts[name] = replace(host, agent=Agent.STARTING)
            turn.do(UseHost(name, host.slots), f"{name} may have {host.slots} workers")
        number += len(slots)  # those of an agent that starts are as good as taken
        if host.agent is Agent.RUNS:
            for slot in slots:
                _start(turn, name, slot)


def _passes_gate(turn: Turn) -> bool:
    facts, rules = turn.facts, turn.rules
    if facts.gate_s is None:
        slots = sum(each.slots for each in facts.hosts.values() if each.usable(turn.at_s))
        if slots < rules.gate:
            return False
        facts.gate_s, facts.short_s = turn.at_s, None
        turn.reasons.append(f"{slots} slots are there, enough for {rules.gate} ranks")
    return True


def _start(turn: Turn, host: str, slot: int) -> None:
    facts = turn.facts
    number = facts.next_number
    facts.next_number += 1
    identity = identity_of(host, number)
    facts.processes[number] = Process(number, Worker(identity, host, slot))
    turn.do(StartOn(host, number, identity, slot), f"starting {identity} on slot {slot}")


def release_hosts(turn: Turn) -> None:
    """Ends the agents of hosts that are left, and forgets those hosts."""
    facts = turn.facts
    held = {each.host for each in facts.processes.values()}
    for name, host in list(facts.hosts.items()):
        never = host.rests_until_s == float("inf")
        if name in held or (host.listed and not never):
            continue
        if host.agent is not Agent.NONE:
            facts.hosts[name] = replace(host, agent=Agent.NONE, stopping="")
            turn.do(ReleaseHost(name), f"{name} is no longer used")
        elif not host.listed and not host.failures:
            del facts.hosts[name]
