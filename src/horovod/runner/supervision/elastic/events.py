"""What happens to a job whose hosts and workers come and go, and what can be done about it.

They come beside those of :mod:`horovod.runner.supervision.events`, of which an elastic job also
gets ``HostFound`` (the agent of a host runs, and its workers can reach the store), ``HostLost``,
``HostStopping``, ``WorkerStarted``, ``WorkerExited``, ``HostsGone``, ``Deadline``, ``Signal``,
``EndAsked`` and ``KillAsked``.

A worker has two names: a number, which frames of agents carry, and its *identity*, which the store
knows: ``<host>-<number>``. No number is ever used again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from horovod.runner.supervision.events import Command, Event

if TYPE_CHECKING:
    from horovod._job.membership import Membership, Worker


def identity_of(host: str, worker: int) -> str:
    """The name of a worker in the store."""
    return f"{host}-{worker}"


# -- events: hosts


@dataclass(frozen=True)
class HostsDiscovered(Event):
    """Which hosts may be used now; fed after every answer, also if nothing changed.

    Attributes:
        hosts: each with its slots, in the order of the listing; empty is legal.
    """

    hosts: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class DiscoveryFailed(Event):
    """The discovery gave no answer.

    Attributes:
        message: why, in one line.
        first: whether it has never given one.
    """

    message: str
    first: bool


# -- events: what workers say in the store of the job


@dataclass(frozen=True)
class WorkerReady(Event):
    """A worker has loaded what it needs, and waits for its first place."""

    worker: Worker


@dataclass(frozen=True)
class WorkerReset(Event):
    """A worker gave up its engine, and waits for a place after ``generation``.

    Attributes:
        generation: the last one in which it had a place.
        text: why, such as a lost peer.
        replayed: how many samples all ranks had done since their last commit.
    """

    identity: str
    generation: int
    text: str
    replayed: int = 0


@dataclass(frozen=True)
class WorkerRunning(Event):
    """A worker has its engine of ``generation``.

    A job whose workers never say so is taken to run :data:`policy.ASSUMED_S` after each plan.

    Attributes:
        stood_s: for how long the worker had none before.
    """

    identity: str
    generation: int
    stood_s: float = 0.0


@dataclass(frozen=True)
class WorkerLeaving(Event):
    """A worker wants to leave at the next boundary, because it was told to from outside.

    Attributes:
        text: why, such as "SIGTERM".
    """

    identity: str
    text: str


@dataclass(frozen=True)
class WorkerLeft(Event):
    """A worker took its leave, and waits for nothing any more."""

    identity: str
    text: str


@dataclass(frozen=True)
class WorkerGone(Event):
    """The connection of a worker to the store ended without a leave."""

    identity: str
    text: str


@dataclass(frozen=True)
class WorkerSlow(Event):
    """A worker makes the others wait; fed again and again, as long as it does.

    Attributes:
        gain: the part of a step's time that the job would save without it.
        text: why it would leave, in words.
    """

    identity: str
    gain: float
    text: str


@dataclass(frozen=True)
class WorkerSilent(Event):
    """A member shows no sign of life, though its connection lives and other members do.

    Attributes:
        silent_s: for how long.
    """

    identity: str
    silent_s: float


# -- commands


@dataclass(frozen=True)
class UseHost(Command):
    """Start the agent of a host; ``HostFound`` or ``HostLost`` follows.

    Attributes:
        slots: how many workers it may have.
    """

    host: str
    slots: int


@dataclass(frozen=True)
class ReleaseHost(Command):
    """End the agent of a host, and with it whatever of the job is still there; it is not lost."""

    host: str


@dataclass(frozen=True)
class StartOn(Command):
    """Start a worker on a host whose agent runs; ``WorkerStarted``, ``WorkerExited`` follow.

    Attributes:
        worker: its number, never used before.
        identity: its name in the store.
        slot: which place of the host it has, as long as it lives.
    """

    host: str
    worker: int
    identity: str
    slot: int


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
        generation: which one.
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
