"""Workers that are to go: silent ones, those of hosts that leave or failed, overdue ones. Pure."""

from __future__ import annotations

import signal
from dataclasses import replace
from typing import TYPE_CHECKING

from horovod.runner.protocol.frames import Stop
from horovod.runner.supervision.elastic import reports

if TYPE_CHECKING:
    from horovod.runner.supervision.elastic.processes import Process
    from horovod.runner.supervision.elastic.turn import Turn

# Between the end of a worker's connection and what its agent says of its process.
EXIT_PATIENCE_S = 2.0


def end_silent(turn: Turn, process: Process, silent_s: float) -> None:
    """Ends a worker that trains and shows no sign of life, if others can go on without it.

    It is killed at once: a process that is stopped hears nothing.
    """
    facts = turn.facts
    others = [member for member in facts.alive() if member.number != process.number]
    is_member = facts.is_member(process) and process.takes_part
    if not (is_member or (process.dismissed_at is not None and process.ran >= 0)) or not others:
        return
    then = turn.blame(process.host, suspect=False)
    why = f"it has been silent for {silent_s:.1f} s ({turn.rules.words.worker_timeout})"
    name = reports.named(facts, process)
    line = (
        f"{name} on {process.host} is killed: {why} in generation {facts.generation.number}; {then}"
    )
    turn.announce(line)
    turn.end(process, why, Stop(signal.SIGKILL, 0.0))


def end_absent_members(turn: Turn) -> None:
    """Ends members that others wait for: they live, but do not give up a broken generation.

    They may be in a long step or load data, so the others are as patient with them as with workers
    that are to come.
    """
    facts, generation = turn.facts, turn.facts.generation
    alive = facts.alive()
    waiting = [process.waits_at for process in alive if process.waits_at is not None]
    if facts.loss is None:
        return
    if generation.finished:
        _end_last_members(turn, alive)
        return
    if not waiting or not facts.is_entered():
        return
    absent = [process for process in alive if process.waits_at is None]
    timeout_s = turn.rules.elastic_timeout_s
    if not absent or not turn.is_due(min(waiting) + timeout_s):
        return
    for each in absent:
        name = reports.named(facts, each)
        then = turn.blame(each.host, suspect=False)
        why = f"it has not given up generation {generation.number} within {timeout_s:g} s"
        turn.announce(f"{name} on {each.host} is ended: {why}; {then}")
        turn.end(each, why)


def _end_last_members(turn: Turn, alive: list[Process]) -> None:
    """Ends members that do not come to an end although others finished or had to go long ago."""
    timeout_s = turn.rules.elastic_timeout_s
    facts, loss = turn.facts, turn.facts.loss
    if alive and facts.is_entered() and loss is not None and turn.is_due(loss.since + timeout_s):
        for process in alive:
            turn.end(process, f"others finished, but it has not ended within {timeout_s:g} s")


def end_neighbors(turn: Turn) -> None:
    """Ends the other workers of hosts that failed, if the rest is enough for the job."""
    facts = turn.facts
    suspects = [each for each in facts.hosts.values() if each.suspect]
    if not suspects or not turn.is_due(facts.job.settled_at):
        return
    for host in suspects:
        facts.hosts[host.name] = replace(facts.hosts[host.name], suspect=False)
        if not turn.rules.spare_neighbors and _is_dispensable(turn, host.name):
            for process in list(facts.processes.values()):
                if process.host == host.name and process.takes_part:
                    turn.end(process, f"another worker of {host.name} failed")


def _is_dispensable(turn: Turn, host: str) -> bool:
    facts = turn.facts

    def is_elsewhere(each: Process) -> bool:
        at = facts.hosts[each.host]
        return each.host != host and not at.suspect and facts.stays(each)

    everywhere = facts.alive() if facts.generation.membership else list(facts.processes.values())
    elsewhere = sum(map(is_elsewhere, everywhere))
    if facts.generation.membership and elsewhere:
        elsewhere += sum(map(is_elsewhere, facts.newcomers()))
    return elsewhere >= turn.rules.min_np


def send_away_unwanted_newcomers(turn: Turn) -> None:
    """Workers without a place whose host leaves, or who want to leave themselves."""
    facts = turn.facts
    for process in list(facts.processes.values()):
        if facts.is_member(process) or not process.takes_part or facts.stays(process):
            continue
        why = process.leaving or f"{process.host} has no slot {process.worker.slot} for it any more"
        if process.ready_at is None:
            turn.end(process, why)
        else:
            turn.dismiss(process, why, turn.at_s + turn.rules.grace_s)


def note_removals(turn: Turn) -> None:
    """Since when there have been members that are to go."""
    facts, generation = turn.facts, turn.facts.generation
    if not any(not facts.stays(process) for process in facts.alive()):
        generation.removal_at = None
    elif generation.removal_at is None:
        generation.removal_at = turn.at_s


def end_overdue(turn: Turn) -> None:
    """Ends processes that should have ended by themselves."""
    facts, grace_s = turn.facts, turn.rules.grace_s
    for process in list(facts.processes.values()):
        if process.told:
            continue
        if process.gone_at is not None:
            if turn.is_due(process.gone_at + EXIT_PATIENCE_S):
                turn.blame(process.host, suspect=False)
                turn.end(process, "its connection is gone")
        elif process.dismissed_at is not None and process.due_at < float("inf"):
            if turn.is_due(process.due_at):
                turn.end(process, "it was dismissed and has not left")
        elif (
            process.left_at is not None
            and process.leaving
            and turn.is_due(process.left_at + grace_s)
        ):
            turn.end(process, "it has left, but its process has not ended")
