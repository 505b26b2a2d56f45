"""Updates the known facts of an elastic job with the ends of its workers' processes. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from horovod.runner.supervision.commands import ReportExit
from horovod.runner.supervision.elastic import endings, reports
from horovod.runner.supervision.elastic.worker_records import gone, note_end

if TYPE_CHECKING:
    from horovod.runner.supervision.elastic.processes import Process
    from horovod.runner.supervision.elastic.turn import Turn
    from horovod.runner.supervision.events import WorkerExited
    from horovod.runner.supervision.failure import RankExit


def on_exit(turn: Turn, event: WorkerExited) -> None:
    """Note that the process of a worker has ended: as it was to, well, or by a failure."""
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
    turn.reasons.append(f"{name} has ended with {ended.returncode}, as requested")


def _on_finish(turn: Turn, process: Process, ended: RankExit) -> None:
    facts, generation = turn.facts, turn.facts.generation
    name = reports.named(facts, process)
    turn.do(ReportExit(ended), f"{name} finished")
    if facts.is_member(process) or generation.membership is None:
        generation.finished += (process,)
    if process.ran >= 0:  # else it may have said that it runs, and that is not known yet
        note_end(turn, process)
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
    start, generation = gone(turn, process), turn.facts.generation
    changes = (line if text.startswith(start) else text for text in generation.changes)
    generation.changes = tuple(changes)
