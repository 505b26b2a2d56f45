"""Events: all that can happen to a job. Pure data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horovod._base.fast_dataclass import dataclass

if TYPE_CHECKING:
    from horovod._job.records import Event as Record
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


# -- hosts


@dataclass(frozen=True)
class HostEvent(Event):
    """Something that happened to a host."""

    host: str


@dataclass(frozen=True)
class HostFound(HostEvent):
    """The agent of a host runs.

    Attributes:
        knows_store: whether its workers know where the store is; if not, ``HostReached`` and
            ``HostTried`` follow.
    """

    knows_store: bool = True


@dataclass(frozen=True)
class HostReached(HostEvent):
    """A host reaches the store at one of its endpoints."""

    endpoint: Endpoint


@dataclass(frozen=True)
class HostTried(HostEvent):
    """A host has tried all endpoints of the store.

    Attributes:
        endpoints: what it tried.
    """

    endpoints: tuple[Endpoint, ...]


@dataclass(frozen=True)
class HostDone(HostEvent):
    """The agent of a host has ended, after all workers there."""


@dataclass(frozen=True)
class HostLost(HostEvent):
    """The agent of a host is gone, or no longer does what it is told.

    Attributes:
        reason: in one line, or with further indented ones.
    """

    reason: str


@dataclass(frozen=True)
class HostStopping(HostEvent):
    """The agent of a host ends its workers, although nobody told it to.

    Attributes:
        signum: what it received, and passes on; 0 if that is not why.
    """

    reason: str
    signum: int = 0


@dataclass(frozen=True)
class HostsGone(Event):
    """No agent is left, so no process of the job is."""


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


# -- workers


@dataclass(frozen=True)
class WorkerStarted(Event):
    """The process of a worker runs."""

    worker: int


@dataclass(frozen=True)
class WorkerExited(Event):
    """A worker ended, or could not be started."""

    worker: int
    ended: RankExit


# -- time, and the outside


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


# -- what is known of workers through the store of the job


@dataclass(frozen=True)
class WorkerSaid(Event):
    """A worker, or the store about it, left a record; see :class:`horovod._job.records.Event`.

    Records that workers run may be missing: then a generation is taken to run after a while.
    """

    record: Record


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
