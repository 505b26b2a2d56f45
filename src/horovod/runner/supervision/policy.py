"""A policy: for each event it gets its own state, and returns the next one, what to do, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from horovod._base.fast_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horovod.runner.supervision.commands import Command
    from horovod.runner.supervision.events import Event
    from horovod.runner.supervision.outcome import Outcome


@dataclass(frozen=True)
class State:
    """State of a job.

    Attributes:
        deadline_at: when a ``Deadline`` is to come; None for never.
        outcome: how the job ended; None while it has not.
    """

    deadline_at: float | None = None
    outcome: Outcome | None = None

    @property
    def awaits_hosts(self) -> bool:
        """Whether the job goes on although none of its hosts has an agent."""
        return False


@dataclass(frozen=True)
class Decision:
    """Next state and commands that follow from an event.

    Attributes:
        state: the next one.
        commands: to execute, in this order.
        reason: why, in one line for ``--verbose``; empty if nothing changed.
    """

    state: State
    commands: Sequence[Command] = ()
    reason: str = ""


class Policy(Protocol):
    """Decides what becomes of a job. Neither waits nor looks at a clock."""

    def begin(self, at_s: float) -> Decision:
        """Return the first state, and what to do first."""
        ...

    def decide(self, state: State, event: Event) -> Decision:
        """Return what follows from an event; the state is one that this policy returned."""
        ...
