"""The integers that asynchronous operations return."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, NamedTuple

from horovod.errors import UsageError
from horovod.torch.compiling import outside_of_graphs
from horovod.torch.devices import wait

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from horovod._native import Handle
    from horovod.group import Group


class _Pending(NamedTuple):
    group: Group
    handle: Handle
    finish: Callable[[Handle], Any]
    outputs: Sequence[torch.Tensor]

    def result(self) -> Any:
        if self.outputs:
            wait(self.handle, self.outputs[0])
        else:
            self.handle.wait()
        return self.finish(self.handle)


class HandleTable:
    """Operations that were started and not yet synchronized, by number from 1."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._pending: dict[int, _Pending] = {}
        self._latest: Group | None = None

    def add(
        self,
        group: Group,
        handle: Handle,
        finish: Callable[[Handle], Any],
        outputs: Sequence[torch.Tensor] = (),
    ) -> int:
        """Keeps an operation until it is synchronized.

        Args:
            group: where it runs.
            handle: the operation.
            finish: makes the result of the ended operation; holds the tensors alive until then.
            outputs: tensors of the caller into which the operation writes, on one device.
        """
        if group is not self._latest:
            self._forget_ended_jobs()
            self._latest = group
        number = next(self._numbers)
        self._pending[number] = _Pending(group, handle, finish, outputs)
        return number

    def poll(self, number: int) -> bool:
        """Whether the operation ended, also with an error; never blocks.

        Raises:
            UsageError: the handle is unknown, or was synchronized already.
        """
        pending = self._pending.get(number)
        if pending is None:
            raise UsageError(f"handle {number} is unknown or has been synchronized already")
        return pending.handle.done()

    def synchronize(self, number: int) -> Any:
        """Waits for the operation, returns its result and forgets it; None if it is unknown.

        Raises:
            HorovodInternalError: the operation failed.
        """
        pending = self._pending.get(number)
        if pending is None:
            return None
        try:
            return pending.result()
        finally:
            self._pending.pop(number, None)

    def _forget_ended_jobs(self) -> None:
        """Drops what nobody synchronized before a shutdown, or it would stay for ever."""
        # A copy is made at once, while a list of items may meet another thread's change.
        for number, pending in self._pending.copy().items():
            if pending.group.engine.error():
                self._pending.pop(number, None)


_table = HandleTable()
add = _table.add


@outside_of_graphs
def poll(handle: int) -> bool:
    """Whether an asynchronous operation ended, also with an error; never blocks.

    Args:
        handle: what an ``*_async`` function returned.

    Raises:
        UsageError: the handle is unknown, or was synchronized already.
    """
    return _table.poll(handle)


@outside_of_graphs
def synchronize(handle: int) -> Any:
    """Waits for an asynchronous operation and returns its result.

    Args:
        handle: what an ``*_async`` function returned.

    Returns:
        A tensor; a tuple of tensors for a grouped operation; ``(output, received_splits)`` for
        alltoall; None if the handle is unknown or was synchronized already.

    Raises:
        HorovodInternalError: the operation failed; the handle is dropped.
    """
    return _table.synchronize(handle)
