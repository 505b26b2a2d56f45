"""Commands: all that a policy can have done about a job. Pure data.

A worker has two names: a number, which frames of agents carry, and its *identity*, which the store
knows: ``<host>-<number>``. No number is ever used again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from horovod._base.fast_dataclass import dataclass

if TYPE_CHECKING:
    from horovod._job.membership import Membership
    from horovod.runner.protocol.frames import Stop
    from horovod.runner.protocol.invitation import Endpoint
    from horovod.runner.supervision.failure import RankExit
    from horovod.runner.supervision.outcome import Outcome


@dataclass(frozen=True)
class Command:
    """Something to do."""


# -- hosts


@dataclass(frozen=True)
class UseHost(Command):
    """Start the agent of a host; ``HostFound`` or ``HostLost`` follows.

    Attributes:
        slots: how many workers it may have.
    """

    host: str
    slots: int


@dataclass(frozen=True)
class SendJob(Command):
    """Tell the agent of a host where the store is, and let it start workers."""

    host: str
    endpoint: Endpoint


@dataclass(frozen=True)
class ChooseEndpoint(Command):
    """Tell the agents of all hosts where the store is, and let them start their workers."""

    endpoint: Endpoint


@dataclass(frozen=True)
class ReleaseHost(Command):
    """End the agent of a host and all its processes; its end is no event."""

    host: str


@dataclass(frozen=True)
class GiveUpHost(Command):
    """No longer wait for the agent of a host; ``HostLost`` follows.

    Attributes:
        reason: becomes that of the event, together with what the agent wrote.
    """

    host: str
    reason: str


# -- workers


@dataclass(frozen=True)
class StartWorker(Command):
    """Start a worker on a host whose agent runs; ``WorkerStarted``, ``WorkerExited`` follow.

    Attributes:
        worker: its number, never used before.
        identity: its name in the store.
        slot: the slot of the host that it holds as long as it lives.
    """

    host: str
    worker: int
    identity: str
    slot: int


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
    """No longer wait for any agent."""


# -- what workers are told, through the store of the job


@dataclass(frozen=True)
class Publish(Command):
    """Give all members of a new generation their places."""

    membership: Membership


@dataclass(frozen=True)
class BreakUp(Command):
    """Let members that still connect in the newest generation give it up: it lost one.

    Attributes:
        text: why.
    """

    text: str


@dataclass(frozen=True)
class TellLoss(Command):
    """Let members that train in a generation know that it has lost one, in case they sleep.

    Attributes:
        generation: the one that lost a member.
        text: why.
    """

    generation: int
    text: str


@dataclass(frozen=True)
class Dismiss(Command):
    """Tell a worker that it has no place any more, and is to end with exit code 0.

    Attributes:
        text: why.
    """

    identity: str
    text: str


# -- what others are told


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
