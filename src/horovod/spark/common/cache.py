"""Which data sets this process has prepared, and which of them are in use."""

from __future__ import annotations

import threading
import weakref
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from horovod.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator


class Prepared(NamedTuple):
    """A data set that was written.

    Attributes:
        token: no other one has it.
        properties: rows for training and for validation, metadata of the columns, bytes of a row.
    """

    token: str
    properties: tuple[int, int, dict[str, Any], float]


@dataclass
class _Entry:
    frame: weakref.ReferenceType[Any] | None
    key: Hashable
    users: int = 0
    prepared: Prepared | None = None
    preparing: threading.Lock = field(default_factory=threading.Lock)


class DataCache:
    """Numbers data sets, and finds those that need not be written again.

    A data set belongs to a frame and to what else decides on its contents. When it is no longer in
    use, its number goes to the next one, unless that is the same. Each number is the lowest whose
    folders this process can have for itself.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: dict[int, _Entry] = {}

    @contextmanager
    def using(
        self,
        frame: object,
        key: Hashable,
        prepare: Callable[[int], Prepared],
        is_there: Callable[[int, str], bool],
        take: Callable[[int], bool] = lambda index: True,
    ) -> Iterator[int]:
        """The number of a data set, which nobody else gets before the block ends.

        Args:
            frame: whose data it is; the object itself, as equal ones may have other data.
            key: all else on which the data depend.
            prepare: writes the data set with a number. Whoever wants the same meanwhile, waits.
            is_there: whether the data set with a number and a token is still what was written.
            take: whether nobody else has the folders of a number, from now on.
        """
        index, entry = self._take(frame, key, take)
        try:
            with entry.preparing:
                if entry.prepared is None or not is_there(index, entry.prepared.token):
                    entry.prepared = None
                    entry.prepared = prepare(index)
            yield index
        finally:
            with self._lock:
                entry.users -= 1

    def properties(self, index: int) -> tuple[int, int, dict[str, Any], float]:
        """Return the properties of the data set that currently has a number.

        Raises:
            UsageError: there is none.
        """
        with self._lock:
            entry = self._entries.get(index)
            if entry is None or entry.prepared is None:
                raise UsageError(f"no data set {index} was prepared by this process")
            return entry.prepared.properties

    def clear(self) -> None:
        """Forgets all data sets; what is in use keeps its number until it is not."""
        with self._lock:
            self._entries = {n: each for n, each in self._entries.items() if each.users}
            for entry in self._entries.values():
                entry.frame = None

    def _take(self, frame: Any, key: Hashable, take: Callable[[int], bool]) -> tuple[int, _Entry]:
        with self._lock:
            for index, entry in self._entries.items():
                if entry.frame is not None and entry.frame() is frame and entry.key == key:
                    entry.users += 1
                    return index, entry
            index = 0
            while self._is_used(index) or not take(index):
                index += 1
            entry = self._entries[index] = _Entry(weakref.ref(frame), key, users=1)
            return index, entry

    def _is_used(self, index: int) -> bool:
        return index in self._entries and self._entries[index].users > 0
