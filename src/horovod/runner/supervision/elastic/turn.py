"""One decision in the making: what changes, what is to be done, when to look again."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from horovod._rendezvous.bounds import one_line
from horovod.runner.protocol.frames import STOP_SOON
from horovod.runner.supervision.commands import Announce, BreakUp, Dismiss, EndWorker, TellLoss
from horovod.runner.supervision.elastic import reports
from horovod.runner.supervision.elastic.hosts import blamed
from horovod.runner.supervision.elastic.states import Loss

if TYPE_CHECKING:
    from horovod.runner.protocol.frames import Stop
    from horovod.runner.supervision.commands import Command
    from horovod.runner.supervision.elastic.processes import Process
    from horovod.runner.supervision.elastic.rules import Rules
    from horovod.runner.supervision.elastic.states import Facts
    from horovod.runner.supervision.outcome import Outcome


_MOST_LINE = 2000


class Turn:
    """Works on a copy of the facts.

    Args:
        rules: of the job.
        facts: before this decision.
        at_s: now.

    Attributes:
        commands: to execute.
        reasons: why.
        wake_at: when something is due although nothing happens.
        verdict: as what the job ends; None while it goes on.
    """

    def __init__(self, rules: Rules, facts: Facts, at_s: float) -> None:
        self.rules = rules
        self.facts = facts.copy()
        self.at_s = at_s
        self.commands: list[Command] = []
        self.reasons: list[str] = []
        self.wake_at = float("inf")
        self.verdict: Outcome | None = None

    def is_due(self, at_s: float) -> bool:
        """Whether a time has come; if not, there will be a deadline then."""
        if self.at_s >= at_s:
            return True
        self.wake_at = min(self.wake_at, at_s)
        return False

    def do(self, command: Command, reason: str = "") -> None:
        """Adds a command, and why."""
        self.commands.append(command)
        if reason:
            self.reasons.append(reason)

    def announce(self, line: str) -> None:
        """Tells the user, in one line."""
        self.commands.append(Announce(one_line(line, _MOST_LINE)))

    def why(self, *more: str) -> str:
        """The reasons, without those that the user is told anyway."""
        told = {command.line for command in self.commands if isinstance(command, Announce)}
        return "; ".join(each for each in (*self.reasons, *more) if each not in told)

    def note(self, process: Process) -> Process:
        """Replace what is known of a process; return it."""
        self.facts.processes[process.number] = process
        return process

    def lose(self, process: Process, text: str) -> None:
        """The current generation cannot go on as it is if it loses a member."""
        if self.facts.is_member(process):
            self.miss(process, text)
            self.facts.generation.changes += (text,)
        else:
            self.tell_lost(process.ran, text)  # it may still train with those it is to leave

    def miss(self, process: Process, text: str) -> None:
        """A member is gone: those who connect to it, or train with it, must not wait for it."""
        facts = self.facts
        self.break_up(text)
        self.tell_lost(process.ran if facts.job.hears_running else facts.generation.number, text)
        facts.job.settled_at = self.at_s + self.rules.settle_s

    def break_up(self, text: str) -> None:
        """The current generation no longer trains, or never will."""
        if self.facts.loss is None:
            self.facts.loss = Loss(self.at_s)
        self.tell_broken(text)

    def tell_broken(self, text: str) -> None:
        """Lets those who connect in the current generation give it up."""
        facts = self.facts
        is_connected = facts.generation.runs and facts.job.hears_running
        if not is_connected and not facts.generation.is_told_broken:
            facts.generation.is_told_broken = True
            self.do(BreakUp(text))

    def tell_lost(self, generation: int, text: str) -> None:
        """Lets those who train in a generation give it up, even if nothing wakes them up."""
        if generation > self.facts.job.told_lost:  # not if it never trained
            self.facts.job.told_lost = generation
            self.do(TellLoss(generation, text))

    def end(self, process: Process, why: str, how: Stop = STOP_SOON) -> None:
        """Ends a process that may not want to."""
        if process.told:
            return
        name = reports.named(self.facts, process)
        self.cut_short(process, f"{name} on {process.host} was ended: {why}")
        if process.takes_part:
            self.lose(process, f"{name} is ended: {why}")
        else:
            self.tell_lost(process.ran, f"{name} is ended: {why}")
        self.note(replace(process, told=why))
        self.do(EndWorker(process.number, how), f"ending {name}: {why}")

    def cut_short(self, process: Process, text: str) -> None:
        """Note a member that is gone before its end: if the others finish, the job has not."""
        facts = self.facts
        may_go = process.leaving or process.dismissed_at is not None or not facts.wanted(process)
        if facts.is_member(process) and facts.counts(process) and not may_go:
            facts.generation.cut += (text,)

    def dismiss(self, process: Process, why: str, due_at: float) -> None:
        """Tells a process that it is no longer needed."""
        if process.dismissed_at is None:
            self.note(replace(process, dismissed_at=self.at_s, due_at=due_at))
            self.do(Dismiss(process.identity, why), f"dismissing {process.identity}: {why}")

    def blame(self, name: str, suspect: bool) -> str:
        """A host is at fault, unless it is leaving.

        Args:
            name: of the host.
            suspect: whether its other workers are to end as well.

        Returns:
            What follows for it, in words.
        """
        facts = self.facts
        host = facts.hosts.get(name)
        if host is None or not host.listed or host.stopping:
            return f"{name} is leaving anyway"
        facts.job.num_failures += 1
        host = blamed(host, self.at_s, self.rules)
        facts.hosts[name] = host if suspect else replace(host, suspect=facts.hosts[name].suspect)
        return reports.rest(host, self.at_s)

    def stop(self, outcome: Outcome) -> None:
        """The job ends; the first outcome counts."""
        if self.verdict is None:
            self.verdict = outcome
