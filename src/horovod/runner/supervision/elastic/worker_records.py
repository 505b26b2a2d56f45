"""Updates the known facts of an elastic job with the records of its workers in the store. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from horovod._job.records import EventKind
from horovod.runner.supervision.elastic import reports

if TYPE_CHECKING:
    from horovod._job.records import Event as Record
    from horovod.runner.supervision.elastic.processes import Process
    from horovod.runner.supervision.elastic.turn import Turn


def on_record(turn: Turn, record: Record) -> None:
    """Note what a worker left in the store, or the store about it."""
    facts = turn.facts
    process = facts.by_identity(record.worker.identity)
    if process is None:
        _on_late(turn, record)
        return
    match record.kind:
        case EventKind.READY:
            if process.takes_part and process.ready_at is None:
                turn.note(replace(process, ready_at=turn.at_s))
                turn.reasons.append(f"{process.identity} is ready")
        case EventKind.RESET:
            _on_reset(turn, process, record)
        case EventKind.RUNNING:
            _on_running(turn, process, record)
        case EventKind.LEAVING:
            if not process.leaving:
                turn.note(replace(process, leaving=record.text or "asked to", leaving_at=turn.at_s))
                text = f"{reports.named(facts, process)} wants to leave: {record.text}"
                turn.reasons.append(text)
                if facts.is_member(process) and process.ran < 0 and not facts.generation.is_entered:
                    turn.break_up(text)  # nobody trains with it yet
        case EventKind.LEFT:
            _on_left(turn, process)
        case EventKind.GONE:
            if process.gone_at is None and process.left_at is None:
                text = f"{gone(turn, process)}{record.text}"
                if process.takes_part:
                    turn.lose(process, text)
                else:
                    turn.tell_lost(process.ran, text)
                turn.note(replace(process, gone_at=turn.at_s))


def _on_late(turn: Turn, record: Record) -> None:
    """Note that a worker that had ended with code 0 was to leave: its end came first."""
    finished = turn.facts.generation.finished
    overtaken = [each for each in finished if each.identity == record.worker.identity]
    if record.kind is EventKind.LEAVING and overtaken:
        turn.facts.generation.finished = tuple(each for each in finished if each not in overtaken)
        name = reports.named(turn.facts, overtaken[0])
        turn.lose(overtaken[0], f"{name} left: {record.text}")


def _on_reset(turn: Turn, process: Process, record: Record) -> None:
    facts, generation = turn.facts, turn.facts.generation
    facts.job.note_replayed(record.generation, record.replayed)
    if not facts.is_member(process):
        if process.dismissed_at is not None:
            turn.note(replace(process, due_at=min(process.due_at, turn.at_s + turn.rules.grace_s)))
        return
    process = turn.note(replace(process, entered=generation.number))
    text = f"{reports.named(facts, process)} gave up generation {record.generation}"
    if process.ran >= 0:
        _note_entry(turn, record.generation)
    if process.ran == record.generation:
        turn.tell_lost(record.generation, text)
    if record.generation < generation.number or not process.takes_part:
        return  # it goes on to the current generation
    if process.waits_at is None:
        turn.note(replace(process, waits_at=turn.at_s))
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
    turn.note(replace(process, ran=record.generation, entered=record.generation))
    if not facts.is_member(process) or record.generation != generation.number:
        return
    generation.is_entered = True
    hurry_dismissed(turn)
    generation.stood_s = max(generation.stood_s, record.stood_s)
    if generation.runs or any(member.ran < generation.number for member in facts.alive()):
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
    for process in list(turn.facts.processes.values()):
        if process.dismissed_at is not None and process.due_at > due_at:
            turn.note(replace(process, due_at=due_at))


def _on_left(turn: Turn, process: Process) -> None:
    if process.left_at is not None:
        return
    if process.leaving:
        name = reports.named(turn.facts, process)
        turn.lose(process, f"{name} left: {process.leaving}")
    note_end(turn, process)
    turn.note(replace(process, left_at=turn.at_s))


def note_end(turn: Turn, process: Process) -> None:
    """A worker ends well: those who connect to it must not wait for it."""
    facts = turn.facts
    if facts.is_member(process) and process.ran < facts.generation.number:
        turn.tell_broken(f"{reports.named(facts, process)} has ended")


def gone(turn: Turn, process: Process) -> str:
    """Return how the report of a worker that is gone begins; the reason follows."""
    return f"{reports.named(turn.facts, process)} is gone: "
