"""What happens to a job, and what can be done about it: events in, commands out. Pure data.

A *policy* decides: for each event it gets its own state, and returns the next one, what to do, and
why. The loop that brings events and executes commands knows no policy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horovod.runner.protocol.agent_job import WorkerJob
    from horovod.runner.protocol.frames import Stop
    from horovod.runner.protocol.invitation import Endpoint
    from horovod.runner.supervision.failure import RankExit
    from horovod.runner.supervision.outcome import Outcome


@dataclass(frozen=True)
class Event:
    """Something that happened.

    Attributes:
        at_s: when, on a clock that only grows.
    """

    at_s: float


@dataclass(frozen=True)
class HostFound(Event):
    """The agent of a host runs."""

    host: str


@dataclass(frozen=True)
class HostLost(Event):
    """The agent of a host is gone, or no longer does what it is told.

    Attributes:
        reason: in one line, or with further indented ones.
    """

    host: str
    reason: str


@dataclass(frozen=True)
class HostStopping(Event):
    """The agent of a host ends its workers, although nobody told it to.

    Attributes:
        signum: what it received, and passes on; 0 if that is not why.
    """

    host: str
    reason: str
    signum: int = 0


@dataclass(frozen=True)
class HostsReady(Event):
    """All hosts of the job are ready.

    Attributes:
        endpoint: where they reach the store, if they had to find out.
    """

    endpoint: Endpoint | None = None


@dataclass(frozen=True)
class HostsFailed(Event):
    """The hosts of the job cannot be used as they are."""

    message: str


@dataclass(frozen=True)
class WorkerStarted(Event):
    """The process of a worker runs."""

    worker: int


@dataclass(frozen=True)
class WorkerExited(Event):
    """A worker ended, or could not be started."""

    worker: int
    ended: RankExit


@dataclass(frozen=True)
class HostsGone(Event):
    """No agent is left, so no process of the job is."""


@dataclass(frozen=True)
class Deadline(Event):
    """The time of the state is over."""


@dataclass(frozen=True)
class Signal(Event):
    """The launcher got a signal."""

    signum: int


@dataclass(frozen=True)
class EndAsked(Event):
    """Something else ends the job: another launcher, a console that is gone, the caller.

    Attributes:
        outcome: as which it counts.
    """

    outcome: Outcome


@dataclass(frozen=True)
class KillAsked(Event):
    """The caller has no more patience."""


@dataclass(frozen=True)
class Command:
    """Something to do."""


@dataclass(frozen=True)
class StartAll(Command):
    """Start the workers that the plan gave to the hosts.

    Attributes:
        endpoint: see :class:`HostsReady`.
    """

    endpoint: Endpoint | None = None


@dataclass(frozen=True)
class StartWorker(Command):
    """Start one more worker on a host whose agent runs."""

    host: str
    worker: WorkerJob


@dataclass(frozen=True)
class EndWorker(Command):
    """End one worker, while others go on."""

    worker: int
    how: Stop


@dataclass(frozen=True)
class EndAll(Command):
    """End all workers, and then the agents."""

    how: Stop


@dataclass(frozen=True)
class KillAll(Command):
    """Kill all workers at once."""


@dataclass(frozen=True)
class Abandon(Command):
    """No longer wait for agents.

    Attributes:
        only_missing: those that never said that they run; all if false.
    """

    only_missing: bool = False


@dataclass(frozen=True)
class RuleOut(Command):
    """A host cannot be used; others may still find out why they cannot be used either."""

    host: str
    reason: str


@dataclass(frozen=True)
class GiveUpStart(Command):
    """Find out which hosts are missing, and report it as :class:`HostsFailed`."""


@dataclass(frozen=True)
class Announce(Command):
    """Tell the user a line at once."""

    line: str


@dataclass(frozen=True)
class ReportExit(Command):
    """Tell others that a worker ended by itself."""

    ended: RankExit


@dataclass(frozen=True)
class ReportOutcome(Command):
    """Tell others how the job will have ended, before its workers are stopped."""

    outcome: Outcome


@dataclass(frozen=True)
class State:
    """Where a job is.

    Attributes:
        deadline_s: when a :class:`Deadline` is to come; None for never.
        outcome: how the job ended; None while it has not.
    """

    deadline_s: float | None = None
    outcome: Outcome | None = None


@dataclass(frozen=True)
class Decision:
    """What follows from an event.

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

    def begin(self, at_s: float) -> State:
        """The first state."""
        ...

    def decide(self, state: State, event: Event) -> Decision:
        """What follows from an event; the state is one that this policy returned."""
        ...
