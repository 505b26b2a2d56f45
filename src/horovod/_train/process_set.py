"""Process sets: which ranks take part in a collective."""

from __future__ import annotations

import operator
import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from horovod._rank import context
from horovod._rank.job_context import current_job
from horovod._train.call_site import call_site
from horovod._train.process_set_table import ProcessSetTable, table_of
from horovod.errors import UsageError

if TYPE_CHECKING:
    from horovod._rank.group import Group


_all: weakref.WeakSet[ProcessSet] = weakref.WeakSet()


class ProcessSet:
    """Ranks that run collectives among themselves.

    It can be used once it is registered: by ``hvd.init(process_sets=[...])`` or
    :func:`add_process_set`. The end of a job unregisters it.

    Args:
        ranks: global ranks, in any order.

    Raises:
        UsageError: something in ``ranks`` is not an integer.
        NotImplementedError: ``ranks`` is an MPI communicator.

    Example:
        >>> str(ProcessSet([2, 0]))
        'ProcessSet(process_set_id=None, ranks=[0, 2], mpi_comm=None)'
    """

    def __init__(self, ranks: Iterable[int]) -> None:
        self._ranks = _sorted_ranks(ranks)
        # By job: ranks that are threads share an object that their script made once.
        self._groups: weakref.WeakKeyDictionary[ProcessSetTable, Group] = (
            weakref.WeakKeyDictionary()
        )
        _all.add(self)

    @property
    def process_set_id(self) -> int | None:
        """The number of the set, the same on all ranks; None while it is not registered."""
        table, group = self._registered()
        return None if table is None or group is None else table.number_of(group)

    @property
    def declared_ranks(self) -> tuple[int, ...]:
        """The global ranks that the set was made of in rising order, whether they exist or not."""
        return tuple(self._ranks)

    @property
    def ranks(self) -> list[int] | None:
        """The global ranks of the set in rising order, None while they are not known.

        In an elastic job those that exist: a set outlives ranks, and has them again later.
        """
        if context.elastic_worker() is None or not context.is_initialized():
            return list(self._ranks)
        return [rank for rank in self._ranks if rank < context.size()]

    @property
    def mpi_comm(self) -> None:
        """Always None: process sets are not made of MPI communicators."""
        return None

    def included(self) -> bool | None:
        """Whether this process belongs to the set, None while the ranks are not known.

        Raises:
            NotInitializedError: Horovod has not been initialized.
        """
        ranks = self.ranks
        return None if ranks is None else context.global_group().rank in ranks

    def rank(self) -> int | None:
        """This process's place in the set, None while the set is not registered.

        Raises:
            UsageError: this process does not belong to the set.
        """
        return None if self.process_set_id is None else self.group().rank

    def size(self) -> int | None:
        """The number of ranks in the set, None while the set is not registered."""
        return None if self.process_set_id is None else self.group().size

    def group(self) -> Group:
        """The group that runs the set's collectives; on ranks outside of it, one that refuses them.

        Raises:
            UsageError: the set is not registered.
        """
        table, group = self._registered()
        if table is None or group is None or table.number_of(group) is None:
            raise UsageError(
                f"{self} is not registered; process sets are registered by "
                "hvd.init(process_sets=[...]) or hvd.add_process_set, on all ranks"
            )
        return group

    def register(self, call_site: str = "") -> None:
        """Makes the set on all ranks of the job; all of them must call it.

        It may be of all ranks: it is a set of its own then, with its own names, as any other.

        Args:
            call_site: ``file:line`` of the caller.

        Raises:
            UsageError: the ranks make no set, or there is one that was made of the same ranks.
            HorovodInternalError: the ranks named different sets, or the job failed.
        """
        world = context.global_group()
        table = table_of(world)
        ranks = self.ranks or []
        try:
            self._groups[table] = table.add(world, ranks, call_site, self.declared_ranks)
        except UsageError as error:
            if ranks == self._ranks:
                raise
            raise UsageError(
                f"the process set of ranks {self._ranks} cannot go on in a job of {world.size} "
                f"ranks: {error}; choose --min-np so that each set keeps ranks of its own"
            ) from None

    def unregister(self, call_site: str = "") -> bool:
        """Removes the set on all ranks of the job; all of them must call it.

        Args:
            call_site: ``file:line`` of the caller.

        Returns:
            False if the set is not registered; then nothing happens.

        Raises:
            HorovodInternalError: the ranks named different sets, or the job failed.
        """
        table, group = self._registered()
        if table is None or group is None:
            return False
        return table.remove(context.global_group(), group, call_site)

    def resolve(self) -> None:
        """Finds the registered set of the same ranks.

        Raises:
            KeyError: there is none.
        """
        table = table_of(context.global_group())
        group = table.find(self._ranks)
        if group is None:
            raise KeyError(f"no process set of ranks {self._ranks} was registered by hvd.init()")
        self._groups[table] = group

    def _registered(self) -> tuple[ProcessSetTable | None, Group | None]:
        """The table of the current job, and this set's group in it."""
        if not context.is_initialized():
            return None, None
        table = table_of(context.global_group())
        return table, self._groups.get(table)

    def __copy__(self) -> ProcessSet:
        """Return the set itself: its ranks know it by its number."""
        return self

    def __deepcopy__(self, memo: object) -> ProcessSet:
        return self

    def __reduce__(self) -> str | tuple[Any, ...]:
        """Return what makes a pickle the set of the same ranks, where it is read."""
        return _set_of, (tuple(self._ranks),)

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

    def register(self, call_site: str = "") -> None:
        raise UsageError("the global process set is always registered")

    def unregister(self, call_site: str = "") -> bool:
        return False

    def __reduce__(self) -> str:
        return "global_process_set"


def add_process_set(process_set: ProcessSet | Iterable[int]) -> ProcessSet:
    """Registers a process set; waits until all ranks of the job have done so, in the same order.

    Args:
        process_set: a set that is not registered, or its global ranks; the same on all ranks.

    Returns:
        The set, now registered.

    Raises:
        UsageError: the ranks make no set, or one of the same ranks is registered. One of all ranks
            may be added beside the global process set.
        NotImplementedError: it is an MPI communicator.
        HorovodInternalError: the ranks named different sets, or the job failed.

    Example:
        >>> hvd.init()
        >>> even = hvd.add_process_set(range(0, hvd.size(), 2))
    """
    if not isinstance(process_set, ProcessSet):
        process_set = ProcessSet(process_set)
    process_set.register(call_site())
    return process_set


def remove_process_set(process_set: ProcessSet) -> bool:
    """Removes a process set; waits until all ranks of the job have done so, in the same order.

    Args:
        process_set: a registered set with no operation in flight. It can be added again later.

    Returns:
        True if it was removed, False if it is not registered or is the global set.

    Raises:
        UsageError: it is no process set.
        HorovodInternalError: the ranks named different sets, or the job failed.
    """
    return _checked(process_set).unregister(call_site())


def _set_of(ranks: tuple[int, ...]) -> ProcessSet:
    """The set of these ranks in this process; registered, if one is."""
    alike = [each for each in list(_all) if each is not global_process_set]
    found = [each for each in alike if each._ranks == list(ranks)]
    found.sort(key=lambda each: each.process_set_id is None)
    return found[0] if found else ProcessSet(ranks)


def registered_sets() -> list[ProcessSet]:
    """The process sets of the job but the global one, in the order in which they were made."""
    if not context.is_initialized():
        return []
    sets = [each for each in list(_all) if each is not global_process_set and each.process_set_id]
    return sorted(sets, key=lambda each: each.process_set_id or 0)


def group_of(process_set: ProcessSet) -> Group:
    """The group that runs the collectives of a process set.

    Raises:
        UsageError: it is not registered, or no process set at all.
        NotInitializedError: Horovod has not been initialized.
    """
    if process_set is global_process_set:
        return current_job().group
    return _checked(process_set).group()


def number_of(process_set: ProcessSet) -> int:
    """The public number of a process set.

    Raises:
        UsageError: it is no process set, or is not registered.
    """
    if process_set is global_process_set:
        return 0
    number = _checked(process_set).process_set_id
    if number is None:
        process_set.group()  # says what is missing
        raise UsageError(f"{process_set} is not registered")
    return number


def check_usable(process_set: ProcessSet) -> None:
    """Fails as :func:`group_of` does, without holding up a newcomer that has no real place yet.

    Raises:
        UsageError, NotInitializedError: see :func:`group_of`.
    """
    if process_set is not global_process_set or not context.is_initialized():
        group_of(process_set)


def _checked(process_set: object) -> ProcessSet:
    if not isinstance(process_set, ProcessSet):
        raise UsageError(f"process_set={process_set!r} is not a hvd.ProcessSet")
    return process_set


def _sorted_ranks(ranks: Iterable[int]) -> list[int]:
    # What mpi4py's communicators have, without importing it.
    if hasattr(ranks, "Get_rank") and hasattr(ranks, "Get_size"):
        raise NotImplementedError(
            "process sets of MPI communicators are not supported: give the global ranks"
        )
    if not isinstance(ranks, Iterable):
        raise UsageError(f"a process set is made of integer ranks, not of {ranks!r}")
    given = list(ranks)
    try:
        return sorted(operator.index(rank) for rank in given)
    except TypeError:
        raise UsageError(f"a process set is made of integer ranks, not of {given!r}") from None


global_process_set: ProcessSet = _GlobalProcessSet()
"""All ranks of the job; the default of every collective."""
