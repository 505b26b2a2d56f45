"""What the stream must know of a job: its store, and which ranks it has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horovod._job.records import Store


class Ranks(Protocol):
    """The ranks of a generation; :class:`horovod._job.membership.Membership` is one."""

    @property
    def generation(self) -> int:
        """Which one, from 0."""

    @property
    def hosts(self) -> Sequence[str]:
        """The host of each rank."""


class WatchedJob(Protocol):
    """A job; :class:`horovod._job.job.Job` is one."""

    @property
    def store(self) -> Store:
        """The store, or a connection to it."""

    @property
    def membership(self) -> Ranks | None:
        """The newest generation; None before the first."""


@dataclass(frozen=True)
class FixedRanks:
    """The ranks of a job that does not change.

    Attributes:
        hosts: of each rank.
        generation: always the first one.
    """

    hosts: tuple[str, ...]
    generation: int = 0


@dataclass(frozen=True)
class FixedJob:
    """A job whose ranks do not change.

    Attributes:
        store: of the job, or a connection to it.
        membership: its ranks.
    """

    store: Store
    membership: FixedRanks
