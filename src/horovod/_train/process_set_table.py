"""The process sets of a job by their public numbers, which are alike on all ranks."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections import deque
from typing import TYPE_CHECKING, Protocol

from horovod._rank.init_arguments import check_ranks
from horovod.errors import MismatchError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horovod._rank.group import Group


class ProcessSetListener(Protocol):
    """Somebody who has to know the process sets of a job."""

    def added(self, world: Group, number: int, group: Group) -> None:
        """The set has this number from now on; ``world`` is the group of all ranks of its job."""

    def removed(self, world: Group, number: int) -> None:
        """The set is about to be removed."""


_listeners: list[ProcessSetListener] = []


def listen(listener: ProcessSetListener) -> None:
    """Tells a listener of all later changes; see :meth:`ProcessSetTable.tell`."""
    _listeners.append(listener)


class ProcessSetTable:
    """The sets that were added to a job, by number from 1; the freed numbers are used again.

    Changes are collective and happen in the same order on all ranks, so the numbers are the same
    everywhere. One change at a time: a second thread waits until the first has ended.
    """

    def __init__(self) -> None:
        self._changes = threading.Lock()
        self._groups: dict[int, Group] = {}
        # In an elastic job, a set may have been made of ranks that do not exist.
        self._declared: dict[int, tuple[int, ...]] = {}
        self._freed: deque[int] = deque()
        self._unused = itertools.count(1)

    def number_of(self, group: Group) -> int | None:
        """The number of a set, None after its removal."""
        return next((n for n, known in list(self._groups.items()) if known is group), None)

    def group_of(self, number: int) -> Group | None:
        """The set of a number, None if there is none."""
        return self._groups.get(number)

    def tell(self, listener: ProcessSetListener, world: Group) -> None:
        """Tells a listener of all sets that there are."""
        with self._changes:
            for number, group in self._groups.items():
                listener.added(world, number, group)

    def find(self, ranks: Sequence[int]) -> Group | None:
        """The set that was made of these ranks in rising order, None if there is none."""
        wanted = tuple(ranks)
        numbers = (number for number, made_of in list(self._declared.items()) if made_of == wanted)
        return self._groups.get(next(numbers, 0))

    def add(
        self,
        world: Group,
        ranks: Sequence[int],
        call_site: str = "",
        declared: Sequence[int] = (),
    ) -> Group:
        """Makes a set on all ranks; waits for them.

        The ranks may be those of all, or of another set that was made of others: the set has names
        and operations of its own in any case.

        Args:
            world: the group of all ranks.
            ranks: global ranks in rising order.
            call_site: ``file:line`` of the caller.
            declared: the ranks that the set was made of, if some of them do not exist.

        Raises:
            UsageError: the ranks make no set, or there is one that was made of the same ranks.
            HorovodInternalError: the ranks named different sets, or the job failed.
        """
        with self._changes:
            check_ranks(ranks, world.size)
            declared = tuple(declared or ranks)
            known = self.find(declared)
            if known is not None:
                raise UsageError(
                    f"the ranks {list(declared)} are those of process set {self.number_of(known)}"
                )
            group = world.add(ranks, call_site=call_site)
            number = self._freed.popleft() if self._freed else next(self._unused)
            self._groups[number] = group
            self._declared[number] = declared
            for listener in _listeners:
                listener.added(world, number, group)
            return group

    def remove(self, world: Group, group: Group, call_site: str = "") -> bool:
        """Forgets a set and removes it on all ranks; waits for them.

        Args:
            world: the group of all ranks.
            group: the set to remove.
            call_site: ``file:line`` of the caller.

        Returns:
            False if the set is not, or no longer, in the table; then nothing happens.

        Raises:
            HorovodInternalError: the ranks named different sets, or the job failed.
        """
        with self._changes:
            number = self.number_of(group)
            if number is None:
                return False
            del self._groups[number]
            for listener in _listeners:
                listener.removed(world, number)
            try:
                world.remove(group, call_site=call_site)
            except MismatchError:
                # The ranks named different sets, so all of them still exist.
                self._groups[number] = group
                for listener in _listeners:
                    listener.added(world, number, group)
                raise
            del self._declared[number]
            self._freed.append(number)
            return True


# A table ends with its job: nothing but the context holds the group of all ranks.
_tables: weakref.WeakKeyDictionary[Group, ProcessSetTable] = weakref.WeakKeyDictionary()
_tables_lock = threading.Lock()


def table_of(world: Group) -> ProcessSetTable:
    """The table of a job, by the group of all its ranks."""
    with _tables_lock:
        table = _tables.get(world)
        if table is None:
            table = _tables[world] = ProcessSetTable()
        return table
