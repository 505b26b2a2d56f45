"""Telling users of the same names apart, alike on all ranks and without asking them."""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from typing import TYPE_CHECKING

from horovod import context

if TYPE_CHECKING:
    from collections.abc import Iterable

    from horovod.group import Group
    from horovod.train.process_set import ProcessSet


class NameNumbers:
    """Numbers the users of names in the order in which the script makes them, from 1.

    All ranks run the same script, so they agree on the numbers. Counting begins anew with each job:
    after an elastic restart the survivors make the same things as the newcomers, and what they have
    kept keeps its number.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._highest: weakref.WeakKeyDictionary[Group, dict[str, int]] = (
            weakref.WeakKeyDictionary()
        )

    def number_for(self, names: Iterable[str], group: Group) -> int:
        """Returns the lowest number above those of all earlier users of any of these names.

        Args:
            names: what the new user will call its operations.
            group: where they will run first.
        """
        own = list(names)
        with self._lock:
            highest = self._highest.setdefault(group, {})
            number = 1 + max((highest.get(name, 0) for name in own), default=0)
            highest.update(dict.fromkeys(own, number))
            return number


class LayerNames:
    """Names layers in the order in which the script makes them, alike on all ranks.

    Ranks that are not in a process set do not make its layers, so each set counts for itself.
    Layers made before ``hvd.init()`` belong to no job yet and have names of their own.

    Args:
        kind: what all the names begin with.
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._in_jobs = NameNumbers()
        self._before_init: Counter[str] = Counter()
        self._lock = threading.Lock()

    def next_name(self, process_set: ProcessSet) -> str:
        """The name of a new layer."""
        key = str(process_set.ranks)
        if context.is_initialized():
            return f"{self._kind}.{self._in_jobs.number_for((key,), context.global_group())}"
        with self._lock:
            self._before_init[key] += 1
            return f"{self._kind}.before_init.{self._before_init[key]}"
