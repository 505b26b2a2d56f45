"""Process sets: which ranks take part in a collective."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

from horovod import context
from horovod.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from horovod.group import Group


class ProcessSet:
    """Ranks that run collectives among themselves.

    Only :data:`global_process_set` can be used in this version.

    Args:
        ranks: global ranks, in any order.

    Raises:
        UsageError: something in ``ranks`` is not an integer.

    Example:
        >>> str(ProcessSet([2, 0]))
        'ProcessSet(process_set_id=None, ranks=[0, 2], mpi_comm=None)'
    """

    def __init__(self, ranks: Iterable[int]) -> None:
        self._ranks = _sorted_ranks(ranks)

    @property
    def process_set_id(self) -> int | None:
        """The number of the set in the engine, None while it is not registered."""
        return None

    @property
    def ranks(self) -> list[int] | None:
        """The global ranks of the set in rising order, None while they are not known."""
        return list(self._ranks)

    @property
    def mpi_comm(self) -> None:
        """Always None: process sets are not made of MPI communicators."""
        return None

    def included(self) -> bool | None:
        """Whether this process belongs to the set, None while the ranks are not known."""
        ranks = self.ranks
        return None if ranks is None else context.rank() in ranks

    def rank(self) -> int | None:
        """This process's place in the set, None while the set is not registered."""
        return None if self.process_set_id is None else self.group().rank

    def size(self) -> int | None:
        """The number of ranks in the set, None while the set is not registered."""
        return None if self.process_set_id is None else self.group().size

    def group(self) -> Group:
        """The group that runs the set's collectives.

        Raises:
            UsageError: the set is not the global one.
        """
        raise UsageError(
            f"{self}: process sets other than the global one are not supported in this version"
        )

    def __str__(self) -> str:
        return (
            f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks}, "
            f"mpi_comm={self.mpi_comm})"
        )


class _GlobalProcessSet(ProcessSet):
    """All ranks of the job; its ranks are known after ``hvd.init()``."""

    def __init__(self) -> None:
        super().__init__(())

    @property
    def process_set_id(self) -> int | None:
        return 0

    @property
    def ranks(self) -> list[int] | None:
        return list(context.global_group().ranks) if context.is_initialized() else None

    def rank(self) -> int | None:
        return context.global_group().rank if context.is_initialized() else None

    def size(self) -> int | None:
        return context.global_group().size if context.is_initialized() else None

    def group(self) -> Group:
        return context.global_group()


def group_of(process_set: ProcessSet) -> Group:
    """The group that runs the collectives of a process set.

    Raises:
        UsageError: it is not the global set, or no process set at all.
        NotInitializedError: Horovod has not been initialised.
    """
    if process_set is global_process_set:
        return context.global_group()
    if not isinstance(process_set, ProcessSet):
        raise UsageError(f"process_set={process_set!r} is not a hvd.ProcessSet")
    return process_set.group()


def _sorted_ranks(ranks: Iterable[int]) -> list[int]:
    given = list(ranks)
    try:
        return sorted(operator.index(rank) for rank in given)
    except TypeError:
        raise UsageError(f"a process set is made of integer ranks, not of {given!r}") from None


global_process_set: ProcessSet = _GlobalProcessSet()
"""All ranks of the job; the default of every collective."""
