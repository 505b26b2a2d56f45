"""The workers of an elastic job, as far as the launcher knows them. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horovod._base.fast_dataclass import dataclass

if TYPE_CHECKING:
    from horovod._job.membership import Worker

FOREVER_S = float("inf")


def identity_of(host: str, worker: int) -> str:
    """Return the name of a worker in the store."""
    return f"{host}-{worker}"


@dataclass(frozen=True)
class Process:
    """A worker whose process has not ended. Times are None until it happens.

    Attributes:
        number: in frames of agents.
        worker: in the store.
        ready_at: since when it has all that it needs for a first place.
        entered: the last generation that it is known to have gone into; -1 for none.
        ran: the last one of which it had an engine; -1 for none.
        waits_at: since when it waits for a place after the current generation.
        leaving: why it wants to leave; empty if it does not.
        leaving_at: since when.
        slow: why it is to go, as it makes the others wait; empty if it is not.
        dismissed_at: when it was told that it has no place.
        due_at: when a dismissed one must have ended.
        told: why the launcher ends it; empty if it does not.
        gone_at: when its connection to the store broke.
        left_at: when it took leave.
    """

    number: int
    worker: Worker
    ready_at: float | None = None
    entered: int = -1
    ran: int = -1
    waits_at: float | None = None
    leaving: str = ""
    leaving_at: float | None = None
    slow: str = ""
    dismissed_at: float | None = None
    due_at: float = FOREVER_S
    told: str = ""
    gone_at: float | None = None
    left_at: float | None = None

    @property
    def identity(self) -> str:
        """Its name in the store."""
        return self.worker.identity

    @property
    def host(self) -> str:
        """Name of the host that it runs on."""
        return self.worker.host

    @property
    def takes_part(self) -> bool:
        """Whether it can have a place, as far as is known."""
        over = self.told or self.dismissed_at is not None
        return not over and self.gone_at is None and self.left_at is None

    @property
    def says_nothing_more(self) -> bool:
        """Whether it took leave as at its end, so that only its exit code is to come."""
        return self.left_at is not None and not self.leaving and not self.told

    @property
    def loads(self) -> bool:
        """Whether it is on its way to its first place."""
        return self.takes_part and self.ready_at is None and not self.leaving
