"""Telling users of the same names apart, alike on all ranks and without asking them."""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from horovod._rank import context

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from horovod._rank.group import Group
    from horovod._train.process_set import ProcessSet


class NameNumbers:
    """Numbers the users of names in the order in which the script makes them, from 1.

    All ranks run the same script, so they agree on the numbers. Counting begins anew with each job.
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

    def keep(self, name: str, number: int, group: Group) -> None:
        """Lets later users of a name count from a number that an earlier job has given out.

        Args:
            name: what a user that survived has in its names.
            number: of that user.
            group: where it runs now.
        """
        with self._lock:
            highest = self._highest.setdefault(group, {})
            highest[name] = max(number, highest.get(name, 0))


class JobNumber:
    """The number of one user of names, drawn anew in each job when the user first runs there.

    Not when it is made: a rank that has survived a restart uses what it kept from the job before, a
    newcomer has just made it, and either may hold others that it no longer uses. Both run the same
    script, so they come to use the same things in the same order.

    Args:
        numbers: among whose users it counts.
        names: what it calls its operations; read when a number is drawn.
    """

    def __init__(self, numbers: NameNumbers, names: Collection[str]) -> None:
        self._numbers = numbers
        self._names = names
        self._lock = threading.Lock()
        self._group: weakref.ref[Group] | None = None
        self._number = 0

    def within(self, group: Group) -> int:
        """The number in the job of a group; to be asked for when something is about to be sent."""
        with self._lock:
            if self._group is None or self._group() is not group:
                self._number = self._numbers.number_for(self._names, group)
                self._group = weakref.ref(group)
            return self._number


class LayerNames:
    """Names layers in the order in which the script makes them, alike on all ranks.

    Ranks that are not in a process set do not make its layers, so each set counts for itself.
    Layers made before ``hvd.init()`` belong to no job yet and have names of their own.

    A layer keeps its name in later jobs, as traced graphs hold it, and layers may run in several
    threads, so that the order of their first runs differs between ranks. Layers that are made after
    it has run in a job count from its number.

    Args:
        kind: what all the names begin with.
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._in_jobs = NameNumbers()
        self._before_init: context.PerContext[Counter[str]] = context.PerContext(Counter)
        self._lock = threading.Lock()

    def new(self, process_set: ProcessSet) -> LayerName:
        """Names a new layer."""
        key = str(process_set.ranks)
        if context.is_initialized():
            number = self._in_jobs.number_for((key,), context.global_group())
            return LayerName(f"{self._kind}.{number}", number)
        with self._lock:
            counts = self._before_init.get()
            counts[key] += 1
            return LayerName(f"{self._kind}.before_init.{counts[key]}", 0)

    def use(self, name: LayerName, process_set: ProcessSet) -> str:
        """The text of a name, which layers that are made later in this job do not get."""
        if name.number:
            key = str(process_set.ranks)
            self._in_jobs.keep(key, name.number, context.global_group())
        return name.text


class LayerName(NamedTuple):
    """The name of a layer.

    Attributes:
        text: the name.
        number: in it, among the layers of a job; 0 if the layer was made before ``hvd.init()``.
    """

    text: str
    number: int
