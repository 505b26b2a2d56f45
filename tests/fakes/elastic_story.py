"""Stories of elastic jobs: what happens, one step after another, and what must hold in between."""

from __future__ import annotations

import shlex
from ast import literal_eval
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from elastic_world import World

from horovod._job.membership import Worker
from horovod._job.records import Event as Record
from horovod._job.records import EventKind
from horovod.runner.supervision import commands, events

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import EllipsisType

    from _pytest.mark import ParameterSet

    from horovod.runner.supervision.elastic.rules import Rules

# Steps that are no methods of the world.
ACTIONS: dict[str, Callable[..., Any]] = {
    "none": lambda world: world.discover(),
    "no_answer": lambda world, first=False: world.feed(
        events.DiscoveryFailed(world.now_s, "exit code 3", first)
    ),
    "stopping": lambda world, host: world.feed(
        events.HostStopping(world.now_s, host, "it received SIGTERM", 15)
    ),
    "silent": lambda world, number: world.feed(
        events.WorkerSilent(world.now_s, world.workers[number].identity, 60.2)
    ),
    # What it had said before its end is read after it.
    "leaving_late": lambda world, identity, host, slot: world.feed(
        events.WorkerSaid(
            world.now_s, Record(EventKind.LEAVING, Worker(identity, host, slot), "SIGTERM")
        )
    ),
    "signal": lambda world, number: world.feed(events.Signal(world.now_s, number)),
    "ready_on": lambda world, host: [world.ready(number) for number in world.on(host)],
    "stop": lambda world, number: setattr(world.workers[number], "stopped", True),
    "stage": lambda world, number, stage: setattr(world.workers[number], "stage", stage),
}
CHECKS: dict[str, Callable[..., bool]] = {
    "size": lambda world, size: world.size == size,
    "hosts": lambda world, *hosts: world.hosts == [*hosts],
    "first": lambda world, host: world.hosts[0] == host,
    "nobody_slow": lambda world: not any(each.slow for each in world.state.facts.alive()),
    "members": lambda world, *identities: members(world) == [*identities],
    "who": lambda world, *identities: {*members(world)} == {*identities},
    "generations": lambda world, number: len(world.memberships) == number,
    "since": lambda world, number: world.memberships[-1].members[0].since == number,
    "stages": lambda world, stage, *numbers: {world.workers[n].stage for n in numbers} == {stage},
    "told": lambda world, *numbers: [n for n in numbers if world.workers[n].told] == [*numbers],
    "untold": lambda world, *numbers: (
        not any(
            each.told
            for each in world.workers.values()
            if each.number in (numbers or world.workers)
        )
    ),
    "dismissed": lambda world, *numbers: all(world.workers[n].dismissed for n in numbers),
    "kept": lambda world, *numbers: not any(world.workers[n].dismissed for n in numbers),
    "ended": lambda world, identity: identity in world.ended,
    "empty": lambda world, host: not world.on(host),
    "agent": lambda world, host, does: world.agents.get(host, "none") == does,
    "failures": lambda world, number: world.state.facts.job.num_failures == number,
    "goes_on": lambda world: world.verdict is None,
    "did": lambda world, kind: kind in [type(each).__name__ for each in world.done],
    "never": lambda world, kind: kind not in [type(each).__name__ for each in world.done],
    "started": lambda world, number: (
        number == sum(isinstance(each, commands.StartWorker) for each in world.done)
    ),
    "ends": lambda world, text: text in world.state.outcome.message,
    "over": lambda world, code: world.over().exit_code == code,
}


def members(world: World) -> list[str]:
    return [each.worker.identity for each in world.memberships[-1].members]


@dataclass(frozen=True)
class Story:
    """What happens to a job.

    Attributes:
        rules: of the job.
        steps: separated by semicolons: slots of hosts that discovery lists; a method of the world
            or an action, with arguments; or a check.
        lines: what the user is told: each line, with "…" for what is left out at one of its ends;
            an ellipsis for further lines.
        verdict: exit code and message, in the same way; None if the job goes on.
        loses_wakeups, says_running: see :class:`World`.
    """

    rules: Rules
    steps: str
    lines: Sequence[str | EllipsisType] | None = None
    verdict: tuple[int, str] | None = None
    loses_wakeups: bool = False
    says_running: bool = True

    def play(self) -> None:
        world = World(self.rules, loses_wakeups=self.loses_wakeups, says_running=self.says_running)
        for step in self.steps.split("; "):
            take_step(world, step)
        self._check(world)

    def _check(self, world: World) -> None:
        if self.lines is not None:
            lines = [line for line in self.lines if line is not ...]
            first = len(world.lines) - len(lines) if self.lines and self.lines[0] is ... else 0
            found = world.lines[first:]
            assert len(found) == len(lines) or ... in self.lines, found
            for line, expected in zip(found, lines, strict=False):
                assert is_like(line, str(expected)), line
            assert len(found) >= len(lines), found
        assert (world.verdict is None) == (self.verdict is None), world.verdict
        if self.verdict is not None and world.verdict is not None:
            code, message = self.verdict
            assert world.verdict.exit_code == code, world.verdict
            assert is_like(world.verdict.message, message), world.verdict.message


def take_step(world: World, step: str) -> None:
    name, *words = shlex.split(step)
    if "=" in name:
        world.discover(**{key: int(slots) for key, slots in map(split, [name, *words])})
        return
    arguments = [value_of(word) for word in words if "=" not in word]
    named = {key: value_of(value) for key, value in (split(w) for w in words if "=" in w)}
    if name in CHECKS:
        assert CHECKS[name](world, *arguments), f"not so: {step}"
    elif name in ACTIONS:
        ACTIONS[name](world, *arguments, **named)
    else:
        getattr(world, name)(*arguments, **named)


def split(word: str) -> tuple[str, str]:
    key, _, value = word.partition("=")
    return key, value


def value_of(word: str) -> Any:
    try:
        return literal_eval(word)
    except (ValueError, SyntaxError):
        return word


def is_like(text: str, expected: str) -> bool:
    if expected.startswith("…"):
        return expected.strip("…") in text
    return text.startswith(expected[:-1]) if expected.endswith("…") else text == expected


def story(title: str, rules: Rules, steps: str, **more: Any) -> ParameterSet:
    """A row of a table of stories."""
    return pytest.param(Story(rules, steps, **more), id=title)
