"""Updates the known facts of an elastic job with each event. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from horovod._job.records import EventKind
from horovod._rendezvous.bounds import one_line
from horovod.runner.supervision import commands, events
from horovod.runner.supervision.commands import ReportExit
from horovod.runner.supervision.elastic import endings, removals, reports, slowness
from horovod.runner.supervision.elastic.hosts import Agent, after_answer
from horovod.runner.supervision.outcome import Outcome

if TYPE_CHECKING:
    from horovod._job.records import Event as Record
    from horovod.runner.supervision.elastic.hosts import Host
    from horovod.runner.supervision.elastic.processes import Process
    from horovod.runner.supervision.elastic.turn import Turn
    from horovod.runner.supervision.events import Event
    from horovod.runner.supervision.failure import RankExit


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
            _on_exit(turn, event)
        case events.WorkerSaid():
            _on_record(turn, event.record)
        case events.WorkerSlow():
            if process := turn.facts.by_identity(event.identity):
                slowness.on_slow(turn, process, event)
        case events.WorkerSilent():
            if process := turn.facts.by_identity(event.identity):
                removals.end_silent(turn, process, event.silent_s)


# -- hosts


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
        turn.stop(Outcome(1, f"cannot find out which hosts there are: {event.message}"))
        return
    turn.reasons.append(f"the hosts stay as they are: {event.message}")
    if not turn.facts.job.is_warned:
        turn.facts.job.is_warned = True
        turn.announce(f"cannot find out which hosts there are, they stay: {event.message}")


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
        f"it reaches no address of this machine: tried {tried}; does a firewall let connections "
        "to this machine pass? Name the interface of the right network with --network-interfaces",
    )


def _on_host_lost(turn: Turn, name: str, reason: str) -> None:
    facts = turn.facts
    host = facts.hosts.get(name)
    if host is None or host.agent is Agent.NONE:
        return
    then = turn.blame(name, suspect=False)
    facts.hosts[name] = replace(facts.hosts[name], agent=Agent.NONE, stopping="")
    here = [each for each in facts.processes.values() if each.host == name]
    ranks = [reports.named(facts, each) for each in here if facts.is_member(each)]
    with_it = f" with {reports.joined(ranks, ', ')}" if ranks else ""
    line = f"{name} is lost{with_it}: {one_line(reason)}"
    turn.announce(f"{line}; {then}")
    facts.generation.changes += (line,)
    for each in here:
        if each.takes_part:
            if facts.is_member(each):
                turn.miss(each, line)
            # If its process lives, nobody can end it, but it can still hear this.
            turn.do(commands.Dismiss(each.identity, f"the agent of {name} is lost"))
        if each.left_at is None and not each.told:  # its connection may have ended a moment before
            turn.cut_short(each, f"{reports.named(facts, each)} was lost with {name}")
        turn.tell_lost(each.ran, line)
        del facts.processes[each.number]


# -- what workers say


def _on_record(turn: Turn, record: Record) -> None:
    facts = turn.facts
    process = facts.by_identity(record.worker.identity)
    if process is None:
        return
    match record.kind:
        case EventKind.READY:
            if process.takes_part and process.ready_at is None:
                turn.change(process, ready_at=turn.at_s)
                turn.reasons.append(f"{process.identity} is ready")
        case EventKind.RESET:
            _on_reset(turn, process, record)
        case EventKind.RUNNING:
            _on_running(turn, process, record)
        case EventKind.LEAVING:
            if not process.leaving:
                turn.change(process, leaving=record.text or "asked to", leaving_at=turn.at_s)
                text = f"{reports.named(facts, process)} wants to leave: {record.text}"
                turn.reasons.append(text)
                if facts.is_member(process) and process.ran < 0 and not facts.generation.is_entered:
                    turn.break_up(text)  # nobody trains with it yet
        case EventKind.LEFT:
            _on_left(turn, process)
        case EventKind.GONE:
            if process.gone_at is None and process.left_at is None:
                text = f"{_gone(turn, process)}{record.text}"
                if process.takes_part:
                    turn.lose(process, text)
                else:
                    turn.tell_lost(process.ran, text)
                turn.change(process, gone_at=turn.at_s)


def _on_reset(turn: Turn, process: Process, record: Record) -> None:
    facts, generation = turn.facts, turn.facts.generation
    facts.job.note_replayed(record.generation, record.replayed)
    if not facts.is_member(process):
        if process.dismissed_at is not None:
            turn.change(process, due_at=min(process.due_at, turn.at_s + turn.rules.grace_s))
        return
    process = turn.change(process, entered=generation.number)
    text = f"{reports.named(facts, process)} gave up generation {record.generation}"
    if process.ran >= 0:
        _note_entry(turn, record.generation)
    if process.ran == record.generation:
        turn.tell_lost(record.generation, text)
    if record.generation < generation.number or not process.takes_part:
        return  # it goes on to the current generation
    if process.waits_at is None:
        turn.change(process, waits_at=turn.at_s)
        turn.reasons.append(f"{text}: {record.text}")
        if facts.loss is None and generation.is_entered:
            generation.changes += (f"{text} ({record.text})",)
        turn.break_up(text)


def _note_entry(turn: Turn, generation: int) -> None:
    """Somebody who trained is in the current generation, after it gave up another one."""
    facts = turn.facts
    facts.generation.is_entered = True
    if generation in facts.job.unseen:  # it was in that one, after all
        facts.job.unseen -= {generation}
        facts.job.stillborn += 1


def _on_running(turn: Turn, process: Process, record: Record) -> None:
    facts, generation = turn.facts, turn.facts.generation
    facts.job.hears_running = True
    turn.change(process, ran=record.generation, entered=record.generation)
    if not facts.is_member(process) or record.generation != generation.number:
        return
    generation.is_entered = True
    hurry_dismissed(turn)
    generation.stood_s = max(generation.stood_s, record.stood_s)
    if generation.runs or any(each.ran < generation.number for each in facts.alive()):
        return
    generation.runs = facts.job.has_trained = True
    if generation.number:
        known_s = 0.0 if facts.job.stopped_at is None else turn.at_s - facts.job.stopped_at
        stood_s = max(known_s, generation.stood_s)
        facts.job.stood_s += stood_s
        line = f"generation {generation.number} runs: training stood still for {stood_s:.2f} s"
        turn.announce(line)


def hurry_dismissed(turn: Turn) -> None:
    """The others go on without those that were dismissed, who must know by now."""
    due_at = turn.at_s + turn.rules.grace_s
    for each in list(turn.facts.processes.values()):
        if each.dismissed_at is not None and each.due_at > due_at:
            turn.change(each, due_at=due_at)


def _on_left(turn: Turn, process: Process) -> None:
    if process.left_at is not None:
        return
    if process.leaving:
        name = reports.named(turn.facts, process)
        turn.lose(process, f"{name} left: {process.leaving}")
    _never_comes(turn, process)
    turn.change(process, left_at=turn.at_s)


def _never_comes(turn: Turn, process: Process) -> None:
    """A worker ends well: those who connect to it must not wait for it."""
    facts = turn.facts
    if facts.is_member(process) and process.ran < facts.generation.number:
        turn.tell_broken(f"{reports.named(facts, process)} has ended")


# -- the ends of processes


def _on_exit(turn: Turn, event: events.WorkerExited) -> None:
    facts = turn.facts
    process = facts.processes.get(event.worker)
    if process is None:
        return
    ended = replace(event.ended, rank=facts.generation.ranks.get(process.identity, -1))
    if process.told or process.dismissed_at is not None or process.leaving:
        _on_orderly_exit(turn, process, ended)
    elif ended.returncode == 0:
        _on_finish(turn, process, ended)
    else:
        _on_failure(turn, process, ended)
    del facts.processes[process.number]


def _on_orderly_exit(turn: Turn, process: Process, ended: RankExit) -> None:
    name = reports.named(turn.facts, process)
    if process.takes_part:
        turn.lose(process, f"{name} left: {process.leaving}")
    elif ended.returncode:
        turn.tell_lost(process.ran, reports.end_of(process, ended))
    turn.reasons.append(f"{name} has ended with {ended.returncode}, as it was to")


def _on_finish(turn: Turn, process: Process, ended: RankExit) -> None:
    facts, generation = turn.facts, turn.facts.generation
    name = reports.named(facts, process)
    turn.do(ReportExit(ended), f"{name} finished")
    if facts.is_member(process) or generation.membership is None:
        generation.finished += (process,)
    if process.ran >= 0:  # else it may have said that it runs, and that is not known yet
        _never_comes(turn, process)
    if not facts.is_member(process):
        endings.spend_slot(turn, process)


def _on_failure(turn: Turn, process: Process, ended: RankExit) -> None:
    facts, generation = turn.facts, turn.facts.generation
    is_member = facts.is_member(process)
    counts = is_member or generation.membership is None
    if counts and (facts.counts(process) or not generation.finished):
        generation.exits += (ended,)
    line = reports.end_of(process, ended)
    if is_member and ended.is_follow_up:
        facts.job.num_failures += 1
        then = "it had lost a peer"
    elif is_member and generation.finished:
        facts.job.num_failures += 1
        then = "others have finished"
    else:
        then = turn.blame(process.host, suspect=counts)
    turn.do(ReportExit(ended), f"{line}; {then}")
    turn.announce(f"{line}; {then}")
    facts.job.settled_at = max(
        facts.job.settled_at, turn.at_s + turn.rules.settle_s if counts else 0.0
    )
    if process.takes_part:
        turn.lose(process, line)
    elif process.gone_at is not None:
        _explain(turn, process, line)


def _explain(turn: Turn, process: Process, line: str) -> None:
    """Now it is known why a worker is gone."""
    gone, generation = _gone(turn, process), turn.facts.generation
    changes = (line if text.startswith(gone) else text for text in generation.changes)
    generation.changes = tuple(changes)


def _gone(turn: Turn, process: Process) -> str:
    return f"{reports.named(turn.facts, process)} is gone: "
