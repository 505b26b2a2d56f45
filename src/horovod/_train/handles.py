"""The integers that asynchronous operations return."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from horovod.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from horovod._native import Handle
    from horovod._rank.group import Group

    # A plain tuple: one is made for each operation.
    _Pending = tuple[Group, Handle, Callable[[Handle, Any], Any], Any]


class HandleTable:
    """Operations that were started and not yet synchronized, by number from 1."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._pending: dict[int, _Pending] = {}
        self._latest: Group | None = None

    def add(
        self, group: Group, handle: Handle, finish: Callable[[Handle, Any], Any], tensors: Any
    ) -> int:
        """Keeps an operation until it is synchronized.

        Args:
            group: where it runs.
            handle: the operation.
            finish: waits for the operation and makes its result of the tensors. One function for
                all calls costs less than one that is made for each.
            tensors: kept alive until then.
        """
        if group is not self._latest:
            self._forget_ended_jobs()
            self._latest = group
        number = next(self._numbers)
        self._pending[number] = (group, handle, finish, tensors)
        return number

    def poll(self, number: int) -> bool:
        """Whether the operation ended, also with an error; never blocks.

        Raises:
            UsageError: the handle is unknown, or was synchronized already.
        """
        pending = self._pending.get(number)
        if pending is None:
            raise UsageError(f"handle {number} is unknown or has been synchronized already")
        return pending[1].done()

    def synchronize(self, number: int) -> Any:
        """Waits for the operation, returns its result and forgets it; None if it is unknown.

        Raises:
            HorovodInternalError: the operation failed.
        """
        pending = self._pending.get(number)
        if pending is None:
            return None
        _, handle, finish, tensors = pending
        try:
            return finish(handle, tensors)
        finally:
            self._pending.pop(number, None)

    def _forget_ended_jobs(self) -> None:
        """Drops what nobody synchronized before a shutdown, or it would stay for ever."""
        # A copy is made at once, while a list of items may meet another thread's change.
        for number, (group, *_) in self._pending.copy().items():
            if group.engine.error():
                self._pending.pop(number, None)
