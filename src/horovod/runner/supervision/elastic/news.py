"""Updates the known facts of an elastic job with each event. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from horovod._rendezvous.bounds import one_line
from horovod.runner.supervision import commands, events
from horovod.runner.supervision.elastic import removals, reports, slowness
from horovod.runner.supervision.elastic.exits import on_exit
from horovod.runner.supervision.elastic.hosts import Agent, after_answer
from horovod.runner.supervision.elastic.worker_records import on_record
from horovod.runner.supervision.outcome import Outcome

if TYPE_CHECKING:
    from horovod.runner.supervision.elastic.hosts import Host
    from horovod.runner.supervision.elastic.turn import Turn
    from horovod.runner.supervision.events import Event


def take(turn: Turn, event: Event) -> None:
    """Notes an event."""
    match event:
        case events.HostsDiscovered():
            _on_hosts(turn, event)
        case events.DiscoveryFailed():
            _on_no_answer(turn, event)
        case events.HostFound() if event.knows_store:
            _on_agent(turn, event.host)
        case events.HostReached():
            # Each host takes the first endpoint that it finds: others may need another one.
            _on_agent(turn, event.host, commands.SendJob(event.host, event.endpoint))
        case events.HostTried():
            _on_no_endpoint(turn, event)
        case events.HostDone():
            _on_host_lost(turn, event.host, "its agent has ended")
        case events.HostLost():
            _on_host_lost(turn, event.host, event.reason)
        case events.HostStopping():
            host = turn.facts.hosts.get(event.host)
            if host is not None:
                turn.facts.hosts[event.host] = replace(host, stopping=event.reason)
                turn.announce(f"the agent of {event.host} ends its workers: {event.reason}")
        case events.WorkerStarted():
            turn.facts.job.any_started = True
        case events.WorkerExited():
            on_exit(turn, event)
        case events.WorkerSaid():
            on_record(turn, event.record)
        case events.WorkerSlow():
            if process := turn.facts.by_identity(event.identity):
                slowness.on_slow(turn, process, event)
        case events.WorkerSilent():
            if process := turn.facts.by_identity(event.identity):
                removals.end_silent(turn, process, event.silent_s)


def _on_hosts(turn: Turn, event: events.HostsDiscovered) -> None:
    facts = turn.facts
    before = facts.hosts
    facts.job.is_warned = False
    facts.hosts = after_answer(before, event.hosts, turn.at_s, turn.rules.missed_polls)
    listed = {name: host.slots for name, host in facts.hosts.items() if host.listed}
    for name, host in facts.hosts.items():
        if name in before and host.returns > before[name].returns:
            _on_return(turn, host)
    if listed != {name: host.slots for name, host in before.items() if host.listed}:
        turn.reasons.append(reports.listing(facts.hosts.values()))


def _on_return(turn: Turn, host: Host) -> None:
    if host.comes_and_goes:
        line = (
            f"{host.name} comes and goes: after {host.returns} returns it gets workers once it has "
            f"been listed for {host.steady_at - turn.at_s:g} s"
        )
        is_news = host.returns & (host.returns - 1) == 0  # less and less often
        (turn.announce if is_news else turn.reasons.append)(line)


def _on_no_answer(turn: Turn, event: events.DiscoveryFailed) -> None:
    if event.first:
        turn.stop(Outcome(1, f"cannot list the hosts: {event.message}"))
        return
    turn.reasons.append(f"the hosts stay as they are: {event.message}")
    if not turn.facts.job.is_warned:
        turn.facts.job.is_warned = True
        turn.announce(f"cannot list the hosts, so they stay the same: {event.message}")


def _on_agent(turn: Turn, name: str, job: commands.SendJob | None = None) -> None:
    host = turn.facts.hosts.get(name)
    if host is not None and host.agent is Agent.STARTING:
        turn.facts.hosts[name] = replace(host, agent=Agent.RUNS)
        turn.reasons.append(f"the agent of {name} runs")
        turn.commands += [] if job is None else [job]


def _on_no_endpoint(turn: Turn, event: events.HostTried) -> None:
    host = turn.facts.hosts.get(event.host)
    if host is None or host.agent is not Agent.STARTING:
        return  # it has reached one
    turn.do(commands.ReleaseHost(event.host))
    tried = ", ".join(address for address, _ in event.endpoints)
    _on_host_lost(
        turn,
        event.host,
        f"it reaches no address of this machine: tried {tried}; does a firewall block "
        "connections to this machine? Name the interface of the right network with "
        "--network-interfaces",
    )


def _on_host_lost(turn: Turn, name: str, reason: str) -> None:
    facts = turn.facts
    host = facts.hosts.get(name)
    if host is None or host.agent is Agent.NONE:
        return
    then = turn.blame(name, suspect=False)
    facts.hosts[name] = replace(facts.hosts[name], agent=Agent.NONE, stopping="")
    here = [process for process in facts.processes.values() if process.host == name]
    ranks = [reports.named(facts, process) for process in here if facts.is_member(process)]
    with_it = f" with {reports.joined(ranks, ', ')}" if ranks else ""
    line = f"{name} is lost{with_it}: {one_line(reason)}"
    turn.announce(f"{line}; {then}")
    facts.generation.changes += (line,)
    for process in here:
        if process.takes_part:
            if facts.is_member(process):
                turn.miss(process, line)
            # If its process lives, nobody can end it, but it can still hear this.
            turn.do(commands.Dismiss(process.identity, f"the agent of {name} is lost"))
        if (
            process.left_at is None and not process.told
        ):  # its connection may have ended a moment before
            turn.cut_short(process, f"{reports.named(facts, process)} was lost with {name}")
        turn.tell_lost(process.ran, line)
        del facts.processes[process.number]
