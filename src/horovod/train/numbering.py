"""Numbers for objects of a script that are the same on all ranks, without asking them."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from horovod.group import Group


class CreationNumbers:
    """Numbers objects by the order in which the script made them, from 1, for each engine anew.

    All ranks run the same script, so they agree on the numbers. After an elastic restart a newcomer
    has made only the objects that the survivors still hold; therefore those are counted first, in
    the order of their making, when the new engine is seen for the first time.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._in_order: list[weakref.ref[Any]] = []
        self._numbers: weakref.WeakKeyDictionary[Any, tuple[weakref.ref[Group], int]] = (
            weakref.WeakKeyDictionary()
        )
        self._next: weakref.WeakKeyDictionary[Group, int] = weakref.WeakKeyDictionary()

    def number_of(self, instance: Any, group: Group) -> int:
        """Returns the number of an object in the job that ``group`` belongs to.

        Args:
            instance: any object that can be weakly referenced and hashed by identity.
            group: the group in use; a new one after each ``hvd.init()``.
        """
        with self._lock:
            number = self._known(instance, group)
            if number is not None:
                return number
            if group not in self._next:
                self._count_survivors(group)
            number = self._known(instance, group)
            return self._assign(instance, group) if number is None else number

    def _known(self, instance: Any, group: Group) -> int | None:
        entry = self._numbers.get(instance)
        return entry[1] if entry is not None and entry[0]() is group else None

    def _assign(self, instance: Any, group: Group) -> int:
        number = self._next.get(group, 1)
        self._next[group] = number + 1
        if instance not in self._numbers:
            self._in_order.append(weakref.ref(instance))
        self._numbers[instance] = (weakref.ref(group), number)
        return number

    def _count_survivors(self, group: Group) -> None:
        self._next[group] = 1
        self._in_order = [reference for reference in self._in_order if reference() is not None]
        for reference in self._in_order:
            instance = reference()
            if instance is not None and _has_ended(self._numbers[instance][0]()):
                self._assign(instance, group)


def _has_ended(group: Group | None) -> bool:
    return group is None or bool(group.engine.error())
