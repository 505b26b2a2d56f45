"""What the jobs of a process are to others: an engine that runs, and news of its begin and end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from horovod import _native
    from horovod._rank.group import Group
    from horovod._settings.config import Config


class JobListener(Protocol):
    """Somebody who has to know what jobs this process takes part in."""

    def begun(self, config: Config, group: Group, number: int) -> None:
        """A job runs from now on.

        Args:
            config: the settings of this rank.
            group: all ranks of the job.
            number: of the context that has joined it.
        """

    def ended(self, group: Group) -> None:
        """The job of this group is about to end."""


class Running(Protocol):
    """An engine that takes part in a job; see :class:`horovod._rank.start.RunningEngine`."""

    @property
    def engine(self) -> _native.Engine:
        """For submitting operations."""

    @property
    def config(self) -> Config:
        """The settings of this rank, with its place among the hosts."""

    def close(self, reason: str) -> None:
        """Leaves the job and tells the peers why."""

    def abandon(self) -> None:
        """In the child of a fork: the engine is the parent's."""
