"""The end of an elastic job: its workers are told to end, then killed. Pure."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from horovod.runner.protocol.frames import STOP_SOON, Stop
from horovod.runner.supervision import commands, events
from horovod.runner.supervision.elastic import reports
from horovod.runner.supervision.failure import headline
from horovod.runner.supervision.fixed import KILL_S, STOP_S
from horovod.runner.supervision.outcome import Outcome
from horovod.runner.supervision.policy import Decision, State

if TYPE_CHECKING:
    from horovod.runner.supervision.commands import Command
    from horovod.runner.supervision.elastic.facts import Facts
    from horovod.runner.supervision.elastic.rules import Rules
    from horovod.runner.supervision.elastic.turn import Turn
    from horovod.runner.supervision.events import Event


@dataclass(frozen=True)
class Stopping(State):
    """The workers were told to end.

    Attributes:
        facts: what was known then.
        rules: of the job.
        verdict: as what the job ends.
        overdue: the identities of workers that did not end in time.
    """

    facts: Facts | None = None
    rules: Rules | None = None
    verdict: Outcome = field(default_factory=lambda: Outcome(0))
    overdue: tuple[str, ...] = ()


@dataclass(frozen=True)
class Killing(Stopping):
    """The workers are being killed."""


@dataclass(frozen=True)
class Over(State):
    """No process of the job is left; ``outcome`` says how it ended."""


def stop(turn: Turn, outcome: Outcome, *, kill: bool = False) -> Decision:
    """Ends the job, with what was decided before in the same turn."""
    facts, rules, at_s = turn.facts, turn.rules, turn.at_s
    if kill:
        killing = Killing(at_s + KILL_S, facts=facts, rules=rules, verdict=outcome)
        return Decision(killing, [*turn.commands, commands.KillAll()], "killing the workers")
    then: list[Command] = list(turn.commands)
    names = [each.identity for each in facts.processes.values()]
    failure = outcome.failure
    if names and failure is not None and not failure.start_error and failure.rank >= 0:
        then.append(commands.Announce(f"{headline(failure)}; stopping {_listed(names)}"))
    how = STOP_SOON
    if outcome.stop_signal:
        how = Stop(outcome.stop_signal, rules.grace_s)
        if outcome.stop_signal == signal.SIGINT and names:
            line = f"the workers have {rules.grace_s:g} s to end; Ctrl-C again ends them at once"
            then.append(commands.Announce(line))
    if outcome.exit_code == 0 and (facts.num_changes or facts.num_failures):
        then.append(commands.Announce(reports.summary(facts, at_s)))
    then += [commands.EndAll(how), commands.ReportOutcome(outcome)]
    state = Stopping(at_s + how.grace_s + STOP_S, facts=facts, rules=rules, verdict=outcome)
    return Decision(state, then, turn.why("stopping the workers"))


def on_event(state: Stopping, event: Event) -> Decision:
    """What follows from an event in a job that ends."""
    assert state.facts is not None
    assert state.rules is not None
    match event:
        case events.HostsGone():
            arguments = (state.facts, state.verdict, state.overdue, state.rules, event.at_s)
            return Decision(over(*arguments))
        case events.Deadline() if isinstance(state, Killing):
            return Decision(
                replace(state, deadline_at=None), [commands.Abandon()], "nobody answers"
            )
        case events.Deadline() | events.KillAsked():
            return _kill(state, event.at_s, "killing the workers")
        case events.Signal():
            name = signal.Signals(event.signum).name
            if event.signum != signal.SIGINT and state.verdict.stop_signal:
                return Decision(state, reason=f"{name}: the workers are ending already")
            return _kill(state, event.at_s, f"{name} again: killing the workers")
        case events.WorkerExited():
            return Decision(_without(state, event))
    return Decision(state)


def _without(state: Stopping, event: events.WorkerExited) -> Stopping:
    assert state.facts is not None
    facts = state.facts.copy()
    process = facts.processes.pop(event.worker, None)
    overdue = state.overdue
    killed = event.ended.returncode == -signal.SIGKILL and not isinstance(state, Killing)
    if killed and process is not None:
        overdue = (*overdue, process.identity)
    return replace(state, facts=facts, overdue=overdue)


def _kill(state: Stopping, at_s: float, reason: str) -> Decision:
    if isinstance(state, Killing):
        return Decision(state)
    killing = Killing(
        at_s + KILL_S,
        facts=state.facts,
        rules=state.rules,
        verdict=state.verdict,
        overdue=state.overdue,
    )
    return Decision(killing, [commands.KillAll()], reason)


def over(
    facts: Facts, outcome: Outcome, overdue: tuple[str, ...], rules: Rules, at_s: float
) -> Over:
    """The last state, whose outcome tells what became of the job."""
    if outcome.stop_signal and outcome.message and overdue:
        were = "were" if len(overdue) > 1 else "was"
        told = f"{_listed(overdue)} did not end within {rules.grace_s:g} s (--grace)"
        outcome = replace(outcome, message=f"{outcome.message}; {told} and {were} killed")
    if outcome.exit_code and outcome.message and facts.any_started:
        outcome = replace(outcome, summary=reports.summary(facts, at_s))
    return Over(None, outcome)


def _listed(names: list[str] | tuple[str, ...]) -> str:
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return f"{', '.join(names[:8])}{more}"
